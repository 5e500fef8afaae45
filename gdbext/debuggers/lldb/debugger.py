"""LLDB, as debuggers/base.py asks for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lldb

from gdbext.debuggers.base import Debugger
from gdbext.errors import UsageError

if TYPE_CHECKING:
    from gdbext.debuggers.job import Job
    from gdbext.live.breakpoints.setter import BreakpointSetter
    from gdbext.live.host import Pause
    from gdbext.live.run_control import RunControl
    from gdbext.targets.base import Target


class LldbDebugger(Debugger):
    """One of the debuggers in this process: an editor may have several. Imports what is needed when it is."""

    name = "lldb"

    def __init__(self, debugger: lldb.SBDebugger) -> None:
        self._debugger = debugger
        self._context: lldb.SBExecutionContext | None = None

    @contextmanager
    def command(self, context: lldb.SBExecutionContext) -> Iterator[None]:
        """While a command runs, what it is about: the editor's target, thread and frame need not be the selected
        ones."""
        before, self._context = self._context, context
        try:
            yield
        finally:
            self._context = before

    def target(self) -> Target:
        """The process or core that the command is about."""
        from gdbext.debuggers.lldb.target import current_target

        return current_target(self.process(), self._thread())

    def stopped_target(self) -> Target:
        """The process at this stop, also inside a breakpoint's callback."""
        return self.target()

    def process(self) -> lldb.SBProcess:
        """That of the command, else the selected one; invalid where there is none."""
        if self._context is not None and self._context.GetProcess().IsValid():
            return self._context.GetProcess()
        return self._debugger.GetSelectedTarget().GetProcess()

    def has_process(self) -> bool:
        """There is one that has not ended."""
        from gdbext.debuggers.lldb.target import is_there

        return is_there(self.process())

    def identity(self) -> Hashable:
        """Never the same twice: LLDB tells nobody that the user wrote to memory or to a register."""
        return object()

    def thread_numbers(self) -> Sequence[int]:
        """Those of ``thread list``."""
        process = self.process()
        return [process.GetThreadAtIndex(index).GetIndexID() for index in range(process.GetNumThreads())]

    def on_change(self, action: Callable[[], None]) -> Callable[[], None]:
        """Nothing to connect to; ``identity`` makes up for it."""
        del action
        return lambda: None

    def run_control(self) -> RunControl:
        """Raises UsageError."""
        raise self._reads_only()

    def pause(self, target: Target) -> Pause:
        """By detaching. Raises UsageError."""
        del target
        raise self._reads_only()

    def breakpoint_setter(self) -> BreakpointSetter:
        """Raises UsageError."""
        raise self._reads_only()

    def write(self, text: str) -> None:
        """To LLDB's output."""
        output = self._debugger.GetOutputFile()
        output.Write(text.encode("utf-8", "backslashreplace"))
        output.Flush()

    def open(self, job: Job, live: bool) -> Target:
        """Attach, load or start. Raises TargetError and its relatives."""
        from gdbext.debuggers.lldb.batch import open_target

        return open_target(self._debugger, job, live)

    def let_go(self, job: Job, runs_on: bool) -> None:
        """Detach, or end the program."""
        from gdbext.debuggers.lldb.batch import let_go

        let_go(self.process(), job, runs_on)

    def _reads_only(self) -> UsageError:
        return UsageError("this command cannot let the process run through LLDB", help="use --debugger gdb")

    def _thread(self) -> lldb.SBThread | None:
        return self._context.GetThread() if self._context is not None else None


def debugger() -> Debugger:
    """The LLDB whose ``script`` command runs this."""
    return LldbDebugger(lldb.debugger)
