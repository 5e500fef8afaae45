"""Waits of parked threads in a free-threaded build (3.13 and 3.14) for anything but lock objects, and the threads that
can end them.

A thread is parked on the mutex of an object, which another thread holds in a critical section of it (PyCriticalSection,
cpython/critical_section.h); to stop the world, until all others have detached from their thread states (struct
_stoptheworld_state, pycore_interp.h); or until the world resumes. It sleeps on a semaphore of its own, in a wait entry
that has the address (Python/parking_lot.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.sync.locks import HAS_PARKED, parked_on
from gdbext.cpython.threads.frame_reader import ThreadState
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import GdbextError

_INACTIVE, _TWO_MUTEXES, _TAGS = 1, 2, 3  # tags of a pointer to a critical section (pycore_critical_section.h)
_SECTIONS = 64  # most nested critical sections of one thread that are followed
_ATTACHED = 1  # PyThreadState.state of a thread that may use Python's objects (_Py_THREAD_ATTACHED)


class ParkedOn(Enum):
    """The kind of object that a parked thread waits for."""

    OBJECT = "the mutex of an object"
    PAUSE = "all other threads, to stop the world"
    RESUMPTION = "the thread that has stopped the world"


class Parked(NamedTuple):
    """The object, or the _stoptheworld_state, at ``address`` that a thread is parked on; ``owners`` are the tids of the
    threads that can wake it, ``type_name`` is the class of an object, "" if unknown."""

    kind: ParkedOn
    address: int
    owners: tuple[int, ...]
    type_name: str = ""


class _Pause(NamedTuple):
    """A _stoptheworld_state of the runtime (``interpreter`` None) or of the interpreter at that address. ``requester``:
    PyThreadState* of the thread that stops the world, 0 for none; ``event`` and ``mutex``: addresses."""

    address: int
    event: int
    mutex: int
    requester: int
    is_complete: bool
    interpreter: int | None


class ParkingLot:
    """The parked threads of one runtime. Raises what reading memory raises."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self._runtime = runtime
        self._memory = runtime.memory
        self._space = runtime.space
        self._states = runtime.thread_states()
        self._pauses = [self._read_pause(py.PyRuntimeState(self._space, runtime.address).stoptheworld, None)]
        for interpreter in runtime.interpreters():
            pause = py.PyInterpreterState(self._space, interpreter.address).stoptheworld
            self._pauses.append(self._read_pause(pause, interpreter.address))
        self._sections = dict(self._read_sections())

    def _read_pause(self, pause: py.StopTheWorld, interpreter: int | None) -> _Pause:
        """The record of a _stoptheworld_state. ``interpreter``: address of the one it is of, None: the runtime."""
        requester = pause.requester if pause.requested else 0
        is_complete = pause.world_stopped != 0
        return _Pause(pause.address, pause.stop_event, pause.mutex, requester, is_complete, interpreter)

    def parked(self, states: Sequence[ThreadState], futex: int) -> Parked | None:
        """The wait of the thread with these states, which sleeps on ``futex``; None if it is not parked."""
        address = parked_on(self._runtime, futex)
        if not address:
            return None
        for state in states:
            if address == state.address + py.PyThreadState.state.offset(self._space):
                scopes = (None, state.interpreter.address)
                active = (pause for pause in self._pauses if pause.requester and pause.interpreter in scopes)
                stopped = next(active, None)
                return self._resumption(stopped) if stopped else Parked(ParkedOn.RESUMPTION, 0, ())
        for pause in self._pauses:
            if address == pause.event:
                is_requester = any(state.address == pause.requester for state in states)  # only it sleeps on the event
                return Parked(ParkedOn.PAUSE, pause.address, self._attached_tids(pause) if is_requester else ())
            if address == pause.mutex:
                return self._resumption(pause)
        return self._parked_on_object(address)

    def stopping(self, states: Sequence[ThreadState]) -> Parked | None:
        """The wait of a thread with these states that stops the world and sleeps a millisecond at a time until all
        others have detached; None if it does not stop the world."""
        addresses = {state.address for state in states}
        pause = next((each for each in self._pauses if each.requester in addresses and not each.is_complete), None)
        return Parked(ParkedOn.PAUSE, pause.address, self._attached_tids(pause)) if pause else None

    def _resumption(self, pause: _Pause) -> Parked:
        """The wait for the thread that has stopped the world, until it resumes."""
        tids = (self._runtime.tid_of(state) for state in self._states if state.address == pause.requester)
        return Parked(ParkedOn.RESUMPTION, pause.address, tuple(filter(None, tids)))

    def _attached_tids(self, pause: _Pause) -> tuple[int, ...]:
        """Tids of the threads that have not detached from their thread states yet."""
        tids = (
            self._runtime.tid_of(state)
            for state in self._states
            if state.address != pause.requester
            and pause.interpreter in (None, state.interpreter.address)
            and py.PyThreadState(self._space, state.address).state == _ATTACHED
        )
        return tuple(sorted({*filter(None, tids)}))

    def _parked_on_object(self, mutex: int) -> Parked | None:
        """The PyObject whose ob_mutex is ``mutex``. Proof: a thread's critical section names it, or a readable type is
        in its header and HAS_PARKED is set."""
        address = mutex - py.PyObject.ob_mutex.offset(self._space)
        owner, type_name = self._sections.get(mutex, 0), ""
        with suppress(GdbextError):
            type_name = self._runtime.objects.type_of(address).name if not address & 7 else ""
        if not owner and not (type_name and self._memory.u8(mutex) & HAS_PARKED):
            return None
        return Parked(ParkedOn.OBJECT, address if type_name else mutex, (owner,) if owner else (), type_name)

    def _read_sections(self) -> Iterator[tuple[int, int]]:
        """(address of the mutex, tid of the thread) of each active critical section."""
        for state in self._states:
            tagged, tid = py.PyThreadState(self._space, state.address).critical_section, self._runtime.tid_of(state)
            for _ in range(_SECTIONS):
                section = tagged & ~_TAGS
                if not section or tagged & _INACTIVE or not tid:
                    break
                following, first, *second = self._memory.words(section, 3 if tagged & _TWO_MUTEXES else 2)
                yield from ((mutex, tid) for mutex in (first, *second) if mutex)
                tagged = following
