"""What the analysis asks of the CPython in the process: waits.snapshot.PythonView over a session."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.inspection.session import Session
from gdbext.model.frame import Frame

if TYPE_CHECKING:
    from gdbext.cpython.sync.gil import GilState
    from gdbext.cpython.sync.python_wait import PythonWait



class PythonWaitView:
    """waits.snapshot.PythonView over the session's CPython."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def gils(self) -> Sequence[GilState]:
        """All GILs."""
        return self._gils

    @cached_property
    def _gils(self) -> Sequence[GilState]:
        from gdbext.cpython.sync.gil import read_gils

        if self._session.python is None:
            return ()
        try:
            return read_gils(self._session.python)
        except GdbextError as error:
            self._session.note_error(error, "GIL")
            return ()

    def tid_of_state(self, address: int) -> int | None:
        """The tid of the thread with this PyThreadState."""
        return self._tids_of_states.get(address)

    @cached_property
    def _tids_of_states(self) -> dict[int, int]:
        return {state.address: tid for tid, states in self._session.thread_states.items() for state in states}

    def wait(self, tid: int, semaphore: int) -> PythonWait | None:
        """What the thread waits for in Python's own words."""
        from gdbext.cpython.sync.python_wait import python_wait

        runtime = self._session.python
        for state in self._session.thread_states.get(tid, ()):
            try:
                found = python_wait(runtime, state, semaphore) if runtime is not None else None
            except GdbextError as error:
                self._session.note_error(error, f"Python objects of thread {tid}")
                continue
            if found is not None:
                return found
        return None

    def inside_with(self, semaphore: int) -> Sequence[int]:
        """Tids of the threads inside ``with lock:`` of the lock with that semaphore."""
        return self._inside.get(semaphore, ())

    @cached_property
    def _inside(self) -> dict[int, list[int]]:
        from gdbext.cpython.sync.with_blocks import held_locks

        runtime = self._session.python
        found: dict[int, list[int]] = {}
        for tid, states in self._session.thread_states.items() if runtime is not None else ():
            for state in states:
                for lock in held_locks(runtime, state) if runtime is not None else ():
                    found.setdefault(lock.semaphore, []).append(tid)
        return found

    def loader_workers(self, tid: int, frames: Sequence[Frame]) -> Sequence[int]:
        """Pids of the worker processes of the DataLoader whose batch the thread waits for; empty where it does not."""
        from gdbext.torch.state.data_loader import LOADER_DEPTH, is_loader_file, loader_workers

        runtime = self._session.python
        if runtime is None or not any(is_loader_file(frame.file) for frame in frames[:LOADER_DEPTH]):
            return ()
        return loader_workers(runtime, self._session.thread_states.get(tid, ()))
