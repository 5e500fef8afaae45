"""Threads that have an object among the variables of their frames: they may put into the queue, or set the event."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import FrameObjects, assumed_names
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.threads.frame_variables import global_variables, locals_of, objects_at, slots_of
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_FRAMES = 16  # innermost frames of each thread that are read
_THREADS = 300  # most threads that are read: a process with more has pools of equal ones


class _CodeFacts(NamedTuple):
    """Facts on all frames of a code object: ``local_count`` is the number of fast locals, ``globals`` are the addresses
    of the values of the global variables that it uses."""

    local_count: int
    has_cells: bool
    is_method: bool
    globals: frozenset[int]


def tids_by_object(runtime: PythonRuntime, states: Mapping[int, Sequence[ThreadState]]) -> dict[int, list[int]]:
    """Address of an object → tids of the threads that have it as a variable, or as an attribute of ``self``."""
    tids: dict[int, list[int]] = {}
    codes: dict[int, _CodeFacts] = {}
    for tid in list(states)[:_THREADS]:
        objects: set[int] = set()
        for state in states[tid]:
            for frame in runtime.frames.stack(state).frames[:_FRAMES]:
                if frame.file.endswith(assumed_names.THREADING_FILE):
                    continue  # the frames in which a thread begins and waits are the same in all threads
                try:
                    if frame.code not in codes:
                        codes[frame.code] = _code_facts(runtime, frame)
                    objects.update(_values(runtime, frame, codes[frame.code]))
                except GdbextError:
                    continue
        for address in objects:
            tids.setdefault(address, []).append(tid)
    return tids


def _code_facts(runtime: PythonRuntime, frame: PythonFrame) -> _CodeFacts:
    """The facts on the code object that a frame runs. Raises GdbextError."""
    names = runtime.codes.get(frame.code).local_names()
    code = py.PyCodeObject(runtime.space, frame.code)
    if isinstance(runtime.layout.abi.frames, FrameObjects):
        name_tuples = (code.co_cellvars, code.co_freevars)
        has_cells = any(address and runtime.objects.tuple_items(address) for address in name_tuples)
    else:
        counts = (py.PyCodeObject.co_ncellvars, py.PyCodeObject.co_nfreevars)
        has_cells = any(not code.has(count) or code.value(count) for count in counts)
    global_values = frozenset(global_variables(runtime, frame).values())
    return _CodeFacts(len(names), bool(has_cells), names[:1] == ["self"], global_values)


def _values(runtime: PythonRuntime, frame: PythonFrame, code: _CodeFacts) -> Iterator[int]:
    """Addresses of the values of a frame's variables, and of the first attributes of its ``self``."""
    words = objects_at(runtime, slots_of(runtime, frame), code.local_count)
    yield from words
    yield from code.globals
    if code.has_cells:
        yield from locals_of(runtime, frame).values()
    if code.is_method and words[0]:
        yield from (value for _, value in islice(runtime.dicts.attributes(words[0]), 64))
