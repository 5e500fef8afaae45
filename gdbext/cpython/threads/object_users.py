"""Threads that have an object among the variables of their frames: they may put into the queue, or set the event.

The search decodes as little as it can: words instead of variables, and what is true of a code object once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import FrameObjects, assumed_names
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.threads.frame_variables import global_variables, locals_of, objects_at, slots_of
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_FRAMES = 16
"""Innermost frames of each thread that are read."""
_THREADS = 300
"""Most threads that are read: a process with more has pools of equal ones."""
_ATTRIBUTES = 64


class _Code(NamedTuple):
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
        if not code:
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
        known = frozenset(global_variables(self._runtime, frame).values())
        return _Code(len(names), self._has_cells(frame), names[:1] == ["self"], known)

    def _has_cells(self, frame: PythonFrame) -> bool:
        runtime, code = self._runtime, py.PyCodeObject(self._runtime.space, frame.code)
        if isinstance(runtime.layout.abi.frames, FrameObjects):
            return any(each and runtime.objects.tuple_items(each) for each in (code.co_cellvars, code.co_freevars))
        counts = (py.PyCodeObject.co_ncellvars, py.PyCodeObject.co_nfreevars)
        return any(not code.has(each) or code.value(each) for each in counts)
