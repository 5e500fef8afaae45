"""``dispatch-frames``: Python functions and passes through the dispatcher in the debugger's own ``bt``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gdbext.commands.reporting import make_report
from gdbext.model.sections.frames_section import FramesSection

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.host import Host
    from gdbext.model.report import Report

NAME = "dispatch-frames"
_EPILOG = """\
In front of the native frame that opens it stands each pass through the dispatcher, in front of the interpreter's
loop the Python functions that it runs:

  #13 0x00007f3a92cb8de4 in c10::Dispatcher::callBoxed(…) () from …/libtorch_cpu.so
      [redispatch] op=[aten::mm], key=[Meta] ()
  #14 0x00007f3a94b3d2a1 in at::_ops::mm::redispatch(…) () from …/libtorch_cpu.so

The innermost native frame stays the first. Added frames have neither variables nor registers. Off unless you turn it
on: the first bt at a stop takes about 0.1 s longer. dispatch-bt --native shows the same with every detail.

gdb: a frame filter of that name, which "info frame-filter" lists and "bt -no-filters" leaves out. Added frames have no
number: all others keep theirs. Where gdb loses a stack that we can follow, they come last.

LLDB 22 and later: a frame provider of the selected target ("target frame-provider list"); editors show its frames, too,
and "frame select" shows the Python line. They count, so that native frames have other numbers than before. LLDB calls
them synthetic, and artificial: "finish" passes over them. Their address is their number in the stack.
LLDB shows where each thread is whenever it is turned on or off.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's own argument."""
    parser.epilog = _EPILOG
    parser.add_argument("state", choices=("on", "off"), metavar="on|off", help="with these frames, or native ones only")


def run(session: Session, args: argparse.Namespace, host: Host) -> Report:
    """Raises UsageError where there is no debugger whose stacks could show them, TargetError where it is too old."""
    shown = args.state == "on"
    host.show_frames(shown)
    return make_report(session, args, NAME, "frames", sections=(FramesSection(shown),))
