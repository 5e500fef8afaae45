"""The host of a live command: whoever runs it, and so can let the process run."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gdbext.errors import TargetError, UsageError

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.breakpoints.break_table import BreakTable
    from gdbext.live.run_control import RunControl
    from gdbext.targets.base import Target

_SETTLING = 0.05
"""Seconds until threads that were let go are where they were before."""
Watch = Callable[[], None]
Pause = Callable[[float, Watch], "Target"]
"""Lets the process run for so many seconds, and gives it stopped again. Raises TargetError."""


class Host(ABC):
    """A debugger, the user's own or one of ours; or nobody.

    ``is_batch``: it runs this one command only, so that the process runs for as long as the command lets it. ``output``
    is the descriptor that a trace goes to: standard output, in a debugger of ours that of scripts/dispatch.
    """

    name: str
    """"gdb", "lldb" or "none"."""

    def __init__(self, is_batch: bool = False, output: int | None = None) -> None:
        self.is_batch = is_batch
        self.output = 1 if output is None else output
        self.lets_finish = False
        """What was watched is over, and nobody asked to end the program: one that we started runs on to its end."""
        self._matcher = ""

    def run_control(self, session: Session) -> RunControl:
        """What runs the session's process. Raises TargetError (a core), UsageError (no debugger)."""
        if session.target.is_core:
            raise TargetError(
                "a core dump cannot run: there is nothing to trace",
                why="this command resumes the process and observes what it does",
                help="see what the core was doing: dispatch-bt; or attach to a live process: scripts/dispatch -p PID",
            )
        return self._run_control()

    @abstractmethod
    def _run_control(self) -> RunControl:
        """The debugger's. Raises UsageError where there is none."""

    @property
    @abstractmethod
    def breakpoints(self) -> BreakTable:
        """The breakpoints of dispatch-break in this debugger. Raises UsageError where there is none."""

    @abstractmethod
    def pause(self, target: Target) -> Pause:
        """How this process is let go for a while. Raises UsageError where it cannot be."""

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

    @contextmanager
    def running(self, command: str) -> Iterator[None]:
        """Only one live command at a time resumes the process. Raises UsageError while another does."""
        if self._matcher:
            raise UsageError(
                f"{self._matcher} is running already",
                why="two traces of one process would stop each other",
                help="end it first with Ctrl+C (or interrupt)",
            )
        self._matcher = command
        try:
            yield
        finally:
            self._matcher = ""


class NoDebugger(Host):
    """Without a debugger a process can be let go and stopped again, and nothing more."""

    name = "none"

    def _run_control(self) -> RunControl:
        raise needs_debugger()

    @property
    def breakpoints(self) -> BreakTable:
        """Raises UsageError."""
        raise needs_debugger()

    def pause(self, target: Target) -> Pause:
        """The closed target's process runs; another target stops it again."""
        from gdbext.targets.live.brief_stop import brief_stop

        def pause(seconds: float, watch: Watch) -> Target:
            run_for(seconds, watch)
            return brief_stop(target.pid)

        return pause

    def show(self, text: str) -> None:
        """To standard output."""
        write(self.output, text)


def run_for(seconds: float, watch: Watch) -> None:
    """Wait while the process runs; ``watch`` is called at the beginning and at the end, when nobody stops it: to stop
    a thread and to let it go switches contexts and takes time, too."""
    import time

    settling = min(_SETTLING, seconds / 4)
    time.sleep(settling)
    watch()
    time.sleep(seconds - settling)
    watch()


def needs_debugger() -> UsageError:
    """The error of a command that cannot work without one."""
    return UsageError("this command needs a debugger", help="use --debugger gdb, or --debugger lldb")


def write(descriptor: int, text: str) -> None:
    """Text to a descriptor, past all buffers. Raises OSError."""
    os.write(descriptor, text.encode("utf-8", "backslashreplace"))
