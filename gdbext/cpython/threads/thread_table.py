"""Threads of the target as CPython knows them: by the kernel's thread id, with their states and names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from gdbext.cpython.threads.python_frame import PythonFrame
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.thread_names import read_thread_names
from gdbext.cpython.threads.thread_state import ThreadState
from gdbext.errors import GdbextError

NoteError = Callable[[GdbextError, str], None]
"""Called with what could not be read, and where."""


class ThreadTable:
    """The thread states of one runtime; what cannot be read is empty and noted once."""

    def __init__(self, runtime: PythonRuntime, note: NoteError) -> None:
        self.runtime = runtime
        self._note = note

    @cached_property
    def states(self) -> Mapping[int, Sequence[ThreadState]]:
        """Kernel thread id → its Python thread states, one for each interpreter."""
        try:
            return self.runtime.threads_by_tid()
        except GdbextError as error:
            self._note(error, "python threads")
            return {}

    def frames(self, tid: int) -> list[PythonFrame]:
        """The Python frames of a thread, innermost first, interpreter by interpreter; none of a thread of C's."""
        stack = self.runtime.frames.stack
        return [frame for state in self.states.get(tid, ()) for frame in stack(state).frames]

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Kernel thread id → the name of its ``threading.Thread``."""
        try:
            names = read_thread_names(self.runtime)
        except GdbextError as error:
            self._note(error, "python thread names")
            return {}
        states = ((tid, state) for tid, found in self.states.items() for state in found)
        return {tid: names[state.ident] for tid, state in states if state.ident in names}
