"""What a command in LLDB is about: the process that the user looks at, and how it is let go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lldb

from gdbext.debuggers.lldb.interruption import Interruption
from gdbext.errors import TargetError

SelectedThread = Callable[[], "lldb.SBThread | None"]
"""Gives the thread that the command is about, None where LLDB's selected one is meant."""


def no_thread() -> None:
    """Nobody says which one: LLDB's selected one is meant."""


def thread_of(process: lldb.SBProcess, selected: SelectedThread) -> lldb.SBThread:
    """The thread that the command is about, else LLDB's selected one; invalid where there is none."""
    thread = selected()
    return thread if thread is not None and thread.IsValid() else process.GetSelectedThread()


class Selection:
    """Of one debugger: an editor may have several in one process."""

    def __init__(self, debugger: lldb.SBDebugger) -> None:
        self.debugger = debugger
        self.interruption = Interruption()
        self._context: lldb.SBExecutionContext | None = None
        self._session = threading.RLock()

    @contextmanager
    def session(self) -> Iterator[None]:
        """The session that commands share, for this thread alone. LLDB runs commands in one thread, and shows stops
        and what is in them in another one."""
        with self._session:
            yield

    @contextmanager
    def session_if_free(self) -> Iterator[bool]:
        """The same for those who cannot wait; False where another thread has it."""
        is_free = self._session.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._session.release()

    @contextmanager
    def command(self, context: lldb.SBExecutionContext) -> Iterator[None]:
        """While a command runs, what it is about: the editor's target, thread and frame need not be the selected
        ones."""
        with self.session():
            before, self._context = self._context, context
            self.interruption.begin()
            try:
                yield
            finally:
                self.interruption.end()
                self._context = before

    def process(self) -> lldb.SBProcess:
        """That of the command, else the selected one; invalid where there is none."""
        if self._context is not None and self._context.GetProcess().IsValid():
            return self._context.GetProcess()
        return self.debugger.GetSelectedTarget().GetProcess()

    def thread(self) -> lldb.SBThread | None:
        """That of the command; None where no command runs."""
        return self._context.GetThread() if self._context is not None else None

    def target(self) -> lldb.SBTarget:
        """That of the command, else the selected one. Raises TargetError: there is none."""
        target = self._context.GetTarget() if self._context is not None else self.debugger.GetSelectedTarget()
        if not target.IsValid():
            raise TargetError("lldb has no program", help="target create PROGRAM   or   process attach --pid PID")
        return target

    @contextmanager
    def synchronous(self) -> Iterator[None]:
        """What lets the process run comes back when it has stopped."""
        before = self.debugger.GetAsync()
        self.debugger.SetAsync(False)
        try:
            yield
        finally:
            self.debugger.SetAsync(before)
