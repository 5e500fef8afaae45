"""What the recognisers of waits ask of the CPython in the process (waits.snapshot.PythonView)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.cpython.threads.thread_table import NoteError, ThreadTable
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.sync.gil import GilState
    from gdbext.cpython.sync.python_wait import PythonWait
    from gdbext.cpython.threads.thread_state import ThreadState


class PythonWaitView:
    """Answers from the runtime's own objects. What cannot be read is noted, and the answer is that nothing is known."""

    def __init__(self, threads: ThreadTable, note: NoteError) -> None:
        self.runtime = threads.runtime
        self._threads = threads
        self._note = note

    def states(self, tid: int) -> Sequence[ThreadState]:
        """The thread states of a thread."""
        return self._threads.states.get(tid, ())

    def gils(self) -> Sequence[GilState]:
        """All GILs."""
        return self._gils

    @cached_property
    def _gils(self) -> Sequence[GilState]:
        from gdbext.cpython.sync.gil import read_gils

        try:
            return read_gils(self.runtime)
        except GdbextError as error:
            self._note(error, "GIL")
            return ()

    def tid_of_state(self, address: int) -> int | None:
        """The tid of the thread with this PyThreadState."""
        return self._tids_of_states.get(address)

    @cached_property
    def _tids_of_states(self) -> dict[int, int]:
        return {state.address: tid for tid, states in self._threads.states.items() for state in states}

    def wait(self, tid: int, futex: int) -> PythonWait | None:
        """What the thread that sleeps on ``futex`` waits for, as Python's own objects tell it."""
        from gdbext.cpython.sync.python_wait import python_wait

        for state in self.states(tid):
            try:
                found = python_wait(self.runtime, state, futex)
            except GdbextError as error:
                self._note(error, f"Python objects of thread {tid}")
                continue
            if found is not None:
                return found
        return None

    def native_ids(self) -> Mapping[int, int]:
        """Thread id → the native_id that ``threading`` recorded when the thread was made; a fork does not change it
        (Lib/threading.py, _after_fork, up to 3.13)."""
        from gdbext.cpython.threads.thread_names import read_native_ids

        found = read_native_ids(self.runtime)
        states = ((tid, state) for tid, states in self._threads.states.items() for state in states)
        return {tid: found[state.ident] for tid, state in states if state.ident in found}

    def inside_with(self, futex: int) -> Sequence[int]:
        """Tids of the threads inside ``with lock:`` of the lock that a thread sleeping on ``futex`` waits for."""
        from gdbext.cpython.sync.locks import waited_words

        words = waited_words(self.runtime, futex) if self._inside else ()
        return [tid for word in words for tid in self._inside.get(word, ())]

    @cached_property
    def _inside(self) -> dict[int, list[int]]:
        from gdbext.cpython.sync.with_blocks import held_locks

        found: dict[int, list[int]] = {}
        for tid, states in self._threads.states.items():
            for state in states:
                for lock in held_locks(self.runtime, state):
                    found.setdefault(lock.word, []).append(tid)
        return found
