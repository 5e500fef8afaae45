"""A tool: one command with its name, its mode, its arguments, what it answers, and how the answer reads as text.

tools/table.py has a row for each, so that listing and finding them imports none.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING

from gdbext.diagnosis.command_parser import CommandParser
from gdbext.diagnosis.tool_mode import Mode
from gdbext.engine.glibc.pthread import brief_look
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

_SETTLING = 0.05
"""Seconds until threads that were let go are where they were before."""


class ToolHost(ABC):
    """Whoever runs a tool: a debugger, or this very process without one.

    ``is_batch``: it runs this one command only, so that the process runs for as long as the command lets it. ``output``
    is the descriptor that a trace goes to: standard output, in a debugger of ours that of scripts/dispatch.
    ``called``: how it was called.
    """

    name: str
    """The host's name: "gdb", "lldb" or "none"."""

    def __init__(self, is_batch: bool = False, output: int | None = None, called: CommandLine | None = None) -> None:
        self.is_batch = is_batch
        self.called = called or IN_A_DEBUGGER
        self.output = 1 if output is None else output

    @abstractmethod
    def pause(self, target: Target) -> Pause:
        """The way in which this process is let go for a while. Raises UsageError where it cannot be."""

    @abstractmethod
    def show(self, text: str) -> None:
        """Show text at once, while the process runs. Raises OSError."""

    def show_frames(self, shown: bool) -> None:  # noqa: ARG002 - there is nobody who could show them
        """Add our frames to the debugger's own stacks, or take them back. Raises UsageError where that cannot be."""
        raise UsageError(
            "there is no bt that could show more frames",
            why="dispatch-frames is for the debugger that you work in",
            help="source gdbext/init.py   in gdb; command script import gdbext/lldb_init.py in LLDB",
        )


def run_for(seconds: float, watch: Watch, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait while the process runs; ``watch`` is called at the beginning and at the end, when nobody stops it: to stop
    a thread and to let it go switches contexts and takes time, too."""
    settling = min(_SETTLING, seconds / 4)
    sleep(settling)
    watch()
    sleep(seconds - settling)
    watch()


class Alone(ToolHost):
    """Nobody but this process: it can let a process go and stop it again, and nothing more."""

    name = "none"

    def pause(self, target: Target) -> Pause:
        """The closed target's process runs; another target stops it again."""

        def pause(seconds: float, watch: Watch) -> Target:
            run_for(seconds, watch)
            return brief_look(target.pid)

        return pause

    def show(self, text: str) -> None:
        """Write it to standard output."""
        write(self.output, text)


class BaseTool(ABC):
    """The base of all tools: a name, a line about them, a mode, and arguments."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line of plain English, as ``scripts/dispatch --help`` lists it."""
    mode: ClassVar[Mode]

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the tool's own arguments to ``parser``, and what its help says besides; none unless overridden."""

    @abstractmethod
    def parser(self) -> ArgumentParser:
        """The parser of its command line, which also makes its help."""


class Tool(BaseTool):
    """A command on one process, the same in gdb, in LLDB, in scripts/dispatch and in the library."""

    completions: ClassVar[Mapping[str, Sequence[str]]] = MappingProxyType({})
    """Values of arguments that argparse does not check, by their ``dest``."""

    def parser(self) -> CommandParser:
        """The parser of its command line, which also makes its help."""
        parser = CommandParser(self.name, self.summary)
        self.arguments(parser)
        return parser

    @abstractmethod
    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Answer, once. Raises GdbextError.

        What is read of a process that runs on meanwhile is read through ``session.settled``; files are written, and the
        process let run, only afterwards.
        """

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
        """The ways in which these arguments can be answered, the best one first. Raises UsageError."""
        return (self.mode,)
