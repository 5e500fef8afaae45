"""The items of a ``queue.SimpleQueue``, which is written in C.

Source: Modules/_queuemodule.c: a list and the position of the first item up to 3.12, a ring of pointers since 3.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import BadData

if TYPE_CHECKING:
    from gdbext.cpython.threads.runtime import PythonRuntime

_LIMIT = 10_000
_PARKING = "parkingqueueobject"
_TYPE = "_queue.SimpleQueue"


def queued(runtime: PythonRuntime, address: int) -> tuple[int, ...]:
    """Addresses of the queue's items, the next one first. Raises MemoryFault, BadData: there is no such queue."""
    if runtime.objects.type_of(address).name != _TYPE:
        raise BadData(f"no SimpleQueue at {address:#x}")
    (form,) = runtime.layout.abi.lock_types_named(_TYPE)
    if form.struct == _PARKING:
        return _in_ring(runtime, address)
    offset, memory = runtime.layout.offset, runtime.memory
    items = runtime.objects.list_items(memory.u64(address + offset(form.struct, "lst")), _LIMIT)
    return items[memory.u64(address + offset(form.struct, "lst_pos")) :]


def _in_ring(runtime: PythonRuntime, address: int) -> tuple[int, ...]:
    offset, memory = runtime.layout.offset, runtime.memory
    first, items, capacity, count = (
        memory.u64(address + offset(_PARKING, f"buf.{name}")) for name in ("get_idx", "items", "items_cap", "num_items")
    )
    if not first < capacity <= _LIMIT or count > capacity:
        raise BadData(f"SimpleQueue at {address:#x} with {count} items")
    words = memory.words(items, capacity)
    return (words * 2)[first : first + count]
