"""Searches in the frames of all threads: interrupted signal handlers, and users of an object.

A handler gets the signal's number and the frame that it interrupted (Modules/signalmodule.c), so that a function whose
arguments are a number and the frame object of its caller is one. That needs no names of C functions.

Threads that have an object among the variables of their frames may put into the queue or set the event. The search
reads all frames of all threads, so it decodes as little as it can: words instead of variables, and what is true of a
code object once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.python_abi import FrameObjects
from gdbext.cpython.objects.objects import FLAG_LONG
from gdbext.cpython.threads.frame_variables import Namespaces, global_variables, items, locals_of, objects_at, slots_of
from gdbext.engine.record import Record
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_FRAMES = 16
"""Innermost frames of each thread that are read."""
_THREADS = 300
"""Most threads that are read: a process with more has pools of equal ones."""
_ATTRIBUTES = 64


class _Code(Record):
    """Facts on all frames of a code object: how many fast locals it has, whether they include cells, whether
    the first one is ``self``, and the objects that its globals are."""

    locals: int
    has_cells: bool
    is_method: bool
    globals: frozenset[int]


class ObjectUsers:
    """Collects the objects of one process."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self._runtime = runtime
        self._codes: dict[int, _Code] = {}
        self._namespaces: Namespaces = {}

    def of(self, states: Mapping[int, Sequence[ThreadState]]) -> dict[int, list[int]]:
        """Address of an object → tids of the threads that have it as a variable, or as an attribute of ``self``."""
        found: dict[int, list[int]] = {}
        for tid in list(states)[:_THREADS]:
            for address in set(self._at_hand(states[tid])):
                found.setdefault(address, []).append(tid)
        return found

    def _at_hand(self, states: Sequence[ThreadState]) -> Iterator[int]:
        for state in states:
            for frame in self._runtime.frames.stack(state).frames[:_FRAMES]:
                if frame.file.endswith(assumed_names.THREADING_FILE):
                    continue  # how a thread begins and waits, the same in all of them
                try:
                    yield from self._values(frame)
                except GdbextError:
                    continue

    def _values(self, frame: PythonFrame) -> Iterator[int]:
        code = self._codes.get(frame.code)
        if code is None:
            code = self._codes[frame.code] = self._read(frame)
        words = objects_at(self._runtime, slots_of(self._runtime, frame), code.locals)
        yield from words
        yield from code.globals
        if code.has_cells:
            yield from locals_of(self._runtime, frame).values()
        if code.is_method and words[0]:
            for number, (_, value) in enumerate(self._runtime.dicts.attributes(words[0])):
                if number >= _ATTRIBUTES:
                    return
                yield value

    def _read(self, frame: PythonFrame) -> _Code:
        names = self._runtime.codes.get(frame.code).local_names()
        known = frozenset(global_variables(self._runtime, frame, self._namespaces).values())
        return _Code(len(names), self._has_cells(frame), names[:1] == ["self"], known)

    def _has_cells(self, frame: PythonFrame) -> bool:
        runtime, find = self._runtime, self._runtime.layout.find
        if isinstance(runtime.layout.abi.frames, FrameObjects):
            at = [find("PyCodeObject", name) for name in ("co_cellvars", "co_freevars")]
            tuples = [runtime.memory.u64(frame.code + each) for each in at if each is not None]
            return any(each and runtime.objects.tuple_items(each) for each in tuples)
        at = [find("PyCodeObject", name) for name in ("co_ncellvars", "co_nfreevars")]
        return any(each is None or runtime.memory.u32(frame.code + each) for each in at)


_ARGUMENTS = 3
"""A method has ``self`` before them."""
_HANDLER_FRAMES = 32
"""Innermost Python frames among which a handler is looked for."""


def in_signal_handler(runtime: PythonRuntime, state: ThreadState) -> bool:
    """One of the thread's innermost functions is a signal handler, or was called by one. Raises nothing."""
    frames = runtime.frames.stack(state).frames[:_HANDLER_FRAMES]
    return any(_has_frame_of(runtime, handler, caller) for handler, caller in zip(frames, frames[1:]))


def _has_frame_of(runtime: PythonRuntime, handler: PythonFrame, caller: PythonFrame) -> bool:
    try:
        arguments = list(_arguments(runtime, handler))
        pairs = zip(arguments, arguments[1:])
        return any(_is_object_of(runtime, value, caller) and _is_number(runtime, first) for first, value in pairs)
    except GdbextError:
        return False


def _arguments(runtime: PythonRuntime, frame: PythonFrame) -> Iterator[int]:
    """The first locals, which are the arguments, and what ``*arguments`` has collected."""
    for value in list(locals_of(runtime, frame).values())[:_ARGUMENTS]:
        yield value
        if runtime.objects.type_of(value).name == "tuple":
            yield from items(runtime, value)


def _is_number(runtime: PythonRuntime, address: int) -> bool:
    return runtime.objects.has_flag(address, FLAG_LONG)


def _is_object_of(runtime: PythonRuntime, address: int, frame: PythonFrame) -> bool:
    """It is the PyFrameObject of that frame (Include/internal/pycore_frame.h: f_frame, since 3.11)."""
    if runtime.objects.type_of(address).name != "frame":
        return False
    if isinstance(runtime.layout.abi.frames, FrameObjects):
        return address == frame.address
    return runtime.memory.u64(address + runtime.layout.offset("PyFrameObject", "f_frame")) == frame.address
