"""A tool: one command with its name, its mode, its arguments, its answer, and how the answer reads as text."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING

from gdbext.diagnosis.tool_arguments import CommandParser
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.glibc.pthread import briefly_stopped
from gdbext.engine.terminal import IN_A_DEBUGGER, CommandLine, write
from gdbext.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import ClassVar

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.samples import Pause, Watch
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import Target
    from gdbext.render import Style


class ToolHost(ABC):
    """The runner of a tool: a debugger, or this very process. ``is_batch``: it runs this one command only, and the
    process runs for as long as the command lets it. ``output``: fd of a trace (1 or, in a debugger that
    scripts/dispatch started, the latter's standard output). ``called``: the command line that called it."""

    name: str
    """The host's name: "gdb", "lldb" or "none"."""

    def __init__(self, is_batch: bool = False, output: int | None = None, called: CommandLine | None = None) -> None:
        self.is_batch = is_batch
        self.called = called or IN_A_DEBUGGER
        self.output = 1 if output is None else output

    @abstractmethod
    def pause(self, target: Target) -> Pause:
        """The function that lets this process run for a while. Raises UsageError if that is impossible."""

    @abstractmethod
    def show(self, text: str) -> None:
        """Show text at once, while the process runs. Raises OSError."""

    def show_frames(self, shown: bool) -> None:  # noqa: ARG002 - without a debugger there are no stacks to show
        """Add gdbext's frames to the debugger's own stacks, or remove them. Raises UsageError if that is impossible."""
        raise UsageError(
            "there is no bt that could show more frames",
            why="dispatch-frames works only inside a debugger",
            help="source gdbext/init.py   in gdb; command script import gdbext/lldb_init.py in LLDB",
        )


def run_for(seconds: float, watch: Watch, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait while the process runs. ``watch`` is called soon after the beginning, when resumed threads are where they
    were before, and at the end, before the stop: stopping and resuming a thread switches contexts and takes time."""
    settling = min(0.05, seconds / 4)
    sleep(settling)
    watch()
    sleep(seconds - settling)
    watch()


class Alone(ToolHost):
    """This process without a debugger: it can resume a process and stop it again, and nothing more."""

    name = "none"

    def pause(self, target: Target) -> Pause:
        """The closed target's process runs; another target stops it again."""

        def pause(seconds: float, watch: Watch) -> Target:
            run_for(seconds, watch)
            return briefly_stopped(target.pid)

        return pause

    def show(self, text: str) -> None:
        write(self.output, text)


class BaseTool(ABC):
    """The base of all tools. A tool of gdbext gets its name, summary and mode from its row in tools/table.py; that of
    another package has them in its class."""

    name: str
    summary: str
    """One line of plain English, as ``scripts/dispatch --help`` lists it."""
    mode: Mode

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the tool's own arguments to ``parser``, and further text to its help; none unless overridden."""

    @abstractmethod
    def parser(self) -> ArgumentParser:
        """The parser of its command line, which also makes its help."""


class Tool(BaseTool):
    """A command on one process, the same in gdb, in LLDB, in scripts/dispatch and in the library."""

    completions: ClassVar[Mapping[str, Sequence[str]]] = MappingProxyType({})
    """Values of arguments that argparse does not check, by their ``dest``."""

    def parser(self) -> CommandParser:
        parser = CommandParser(self.name, self.summary)
        self.arguments(parser)
        return parser

    @abstractmethod
    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Answer, once. Read through ``session.read_consistently``, then write or resume. Raises GdbextError."""

    def run_alone(self, args: Namespace) -> Report:  # noqa: ARG002 - for tools that know something without a process
        """Answer without a process. Raises UsageError."""
        raise UsageError(f"{self.name} needs a process, a core or a recording", help="-p PID, -c CORE or -r FILE")

    def exit_status(self, report: Report, args: Namespace) -> int:  # noqa: ARG002 - for those whose answer is in it
        """The exit status of scripts/dispatch for a report; 1 and 2 are those of failures."""
        return 0

    @abstractmethod
    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""

    def modes(self, args: Namespace) -> Sequence[Mode]:  # noqa: ARG002 - most tools have one mode only
        """The modes in which these arguments can be answered, the best one first. Raises UsageError."""
        return (self.mode,)
