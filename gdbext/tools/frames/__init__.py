"""``dispatch-frames``: adds Python functions and dispatcher passes to the debugger's own ``bt``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import make_report
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.engine.vocabulary import Section
from gdbext.render import Style

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session


@dataclass(frozen=True)
class FramesSection(Section):
    """``shown``: from now on ``bt`` shows Python functions and passes through the dispatcher."""

    name: ClassVar[str] = "debugger_frames"
    shown: bool


_EPILOG = """\
Each pass through the dispatcher is printed above the native frame that starts it, and Python functions above the frame
of the interpreter loop that runs them:

  #13 0x00007f3a92cb8de4 in c10::Dispatcher::callBoxed(…) () from …/libtorch_cpu.so
      [redispatch] op=[aten::mm], key=[Meta] ()
  #14 0x00007f3a94b3d2a1 in at::_ops::mm::redispatch(…) () from …/libtorch_cpu.so

The innermost native frame stays the first. Added frames have no variables and no registers. They are off by default,
because the first bt at each stop then takes about 0.1 s longer. dispatch-bt --native shows the same with every detail.

In gdb, they are a frame filter of the same name, which "info frame-filter" lists and "bt -no-filters" bypasses. Added
frames have no number, so all other frames keep theirs. If gdb's unwinder stops early and gdbext's does not, the added
frames come last.

In LLDB 22 and later, they are a frame provider of the selected target ("target frame-provider list"). Editors show its
frames, too, and "frame select" shows the Python line. Added frames are numbered, so native frames are renumbered. LLDB
calls the added frames synthetic and artificial, "finish" skips them, and their address is their number in the stack.
LLDB prints the location of each thread whenever the frames are turned on or off.
"""


class FramesTool(Tool):
    """The command ``dispatch-frames`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG
        state_help = "show these frames, or native frames only"
        parser.add_argument("state", choices=("on", "off"), metavar="on|off", help=state_help)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Raises UsageError without a debugger that could show them, TargetError if it is too old."""
        shown = args.state == "on"
        host.show_frames(shown)
        return make_report(self, session, args, sections=(FramesSection(shown),))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        return render(report, style)


def render(report: Report, style: Style) -> Iterator[str]:
    """One line: what bt shows from now on."""
    if report.section(FramesSection).shown:
        yield style("bt shows Python functions and passes through the dispatcher.", "bold")
    else:
        yield style("bt shows native frames only.", "bold")
