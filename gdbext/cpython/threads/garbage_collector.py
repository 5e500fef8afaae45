"""All objects that the garbage collector knows, and a run of it that is not over.

The collector's lists: PyGC_Head (Include/internal/pycore_gc.h: _gc_next, _gc_prev, in front of each object), struct
gc_generation, of 3.9 to 3.13. A build without the GIL has no such lists, and 3.14 others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from gdbext.cpython.abi.python_structures import PyInterpreterState
from gdbext.cpython.abi.versions import unsupported
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData, GdbextError

_HEAD = 16  # size of a PyGC_Head in bytes
_POINTER = ~7  # the collector keeps flags in the lowest bits of both pointers
_GENERATION = 24  # size of struct gc_generation: a head, threshold and count; there are three of them
_READ = struct.Struct("<2Q8xQ")  # the head's pointers, and ob_type behind ob_refcnt


def _generations_offset(runtime: PythonRuntime) -> int | None:
    """The offset of the generations in a PyInterpreterState; None if the lists of this version are not known."""
    layout = runtime.layout
    if layout.abi.free_threaded or layout.find(PyInterpreterState.gc_young) is not None:
        return None
    return layout.find(PyInterpreterState.gc_generations)


def collected_objects(runtime: PythonRuntime, limit: int) -> Iterator[tuple[int, int]]:
    """(address, address of its type) of at most ``limit`` objects in the garbage collector's lists, the youngest
    generation first. Raises PythonUnsupported for a Python whose lists are not known, BadData, MemoryFault."""
    if not runtime:
        return None
    offset = _generations_offset(runtime)
    if offset is None:
        raise unsupported(f"the lists of Python {runtime.version}'s garbage collector are unknown")
    starts = [interpreter.address + offset for interpreter in runtime.interpreters()]
    heads = [start + number * _GENERATION for start in starts for number in range(3)]
    read, unpack, size, left = runtime.memory.read, _READ.unpack, _READ.size, limit
    for head in heads:
        following, at = head, runtime.memory.u64(head + 8) & _POINTER
        while at != head and left:
            after, before, kind = unpack(read(at, size))
            if after & _POINTER != following or not before:
                raise BadData(
                    f"the list of the garbage collector is inconsistent at {at:#x}: it is damaged, or changes"
                )
            yield at + _HEAD, kind
            following, at, left = at, before & _POINTER, left - 1


def objects_of(
    runtime: PythonRuntime, limit: int, kind_of: Callable[[PyRef], str]
) -> Iterator[tuple[PyRef, str] | None]:
    """(object, ``kind_of(its class)``) of each object of ``collected_objects``; None where ``kind_of``, which is called
    once for each class, returns "". Raises as ``collected_objects``."""
    kinds: dict[int, str] = {}
    for address, kind in collected_objects(runtime, limit):
        if kind not in kinds:
            kinds[kind] = kind_of(PyRef(runtime, kind))
        yield (PyRef(runtime, address), kinds[kind]) if kinds[kind] else None


_OLDEST = 2  # the oldest generation of the garbage collector


class GcRun(NamedTuple):
    """An unfinished run of the garbage collector."""

    generation: int  # the oldest generation that it examines: 0, 1 or 2
    survivors: int  # objects that survived the last full run, which each full run examines again
    done: int = 0  # earlier runs over this generation

    @property
    def is_full(self) -> bool:
        return self.generation == _OLDEST

    def is_same(self, other: GcRun) -> bool:
        """True if both are the same run: no run of this generation has ended in between."""
        return (self.generation, self.done) == (other.generation, other.done)


_COLLECTING, _GARBAGE, _LONG_LIVED, _COUNTS, _DONE = 176, 184, 200, 20, 104
"""Offsets in struct _gc_runtime_state behind its generations (Include/internal/pycore_gc.h, 3.8 to 3.13): three
generations of 24 bytes, a pointer, the permanent generation, three statistics of 24 bytes, ``collecting``, ``garbage``,
``callbacks``, ``long_lived_total``. The count of a generation is 0 while it is collected."""


def running_collection(runtime: PythonRuntime) -> GcRun | None:
    """The run of the garbage collector; None if none runs, or its state is unknown. Raises nothing."""
    offset = _generations_offset(runtime) if runtime else None
    with suppress(GdbextError):
        for interpreter in runtime.interpreters() if offset is not None else ():
            start = interpreter.address + (offset or 0)
            garbage = runtime.objects.type_of(runtime.memory.u64(start + _GARBAGE)).name
            if garbage == "list" and runtime.memory.u32(start + _COLLECTING) == 1:
                older = [runtime.memory.u32(start + _COUNTS + 24 * number) for number in (1, _OLDEST)]
                generation = next((number for number, count in enumerate(older) if count), _OLDEST)
                done = runtime.memory.u64(start + _DONE + 24 * generation)
                return GcRun(generation, runtime.memory.u64(start + _LONG_LIVED), done)
    return None
