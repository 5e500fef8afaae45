"""All objects that Python's garbage collector knows, without running it.

Layouts: PyGC_Head (Include/internal/pycore_gc.h: _gc_next, _gc_prev, in front of each object), struct gc_generation, of
3.9 to 3.13. A build without the GIL has no such lists, and 3.14 others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import BadData, PythonUnsupported

_HEAD = 16
"""sizeof(PyGC_Head)."""
_POINTER = ~7
"""The collector keeps flags in the lowest bits of both pointers."""
_GENERATIONS = 3
_GENERATION = 24
"""Number and size of struct gc_generation: a head, threshold and count."""


_READ = struct.Struct("<2Q8xQ")
"""The head's pointers, and ob_type behind ob_refcnt."""


def collected_objects(runtime: PythonRuntime, limit: int) -> Iterator[tuple[int, int]]:
    """Address and type of each, at most ``limit``; of the youngest generation first.

    Raises PythonUnsupported for a Python whose lists are not known, BadData, MemoryFault.
    """
    layout = runtime.layout
    place = layout.find("PyInterpreterState", "gc.generations")
    if place is None or layout.abi.free_threaded or layout.find("PyInterpreterState", "gc.young") is not None:
        raise PythonUnsupported(f"the lists of Python {runtime.version}'s garbage collector are not known")
    heads = [
        interpreter.address + place + number * _GENERATION
        for interpreter in runtime.interpreters()
        for number in range(_GENERATIONS)
    ]
    read, unpack, size, left = runtime.memory.read, _READ.unpack, _READ.size, limit
    for head in heads:
        following, at = head, runtime.memory.u64(head + 8) & _POINTER
        while at != head and left:
            after, before, kind = unpack(read(at, size))
            if after & _POINTER != following or not before:
                raise BadData(f"the list of collected objects is torn at {at:#x}: a collection runs, or it is damaged")
            yield at + _HEAD, kind
            following, at, left = at, before & _POINTER, left - 1
