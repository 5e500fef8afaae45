"""Items of sets, deques and ``queue.SimpleQueue``.

SimpleQueue: Modules/_queuemodule.c: a list and the position of the first item up to 3.12, a ring of pointers since
3.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi.python_layout import (
    BLOCK_DATA,
    BLOCK_ITEMS,
    BLOCK_RIGHT,
    DEQUE_LEFT,
    DEQUE_LEFT_INDEX,
    DEQUE_SIZE,
)
from gdbext.errors import BadData

if TYPE_CHECKING:
    from gdbext.cpython.threads.runtime import PythonRuntime

_LIMIT = 100_000
_ENTRY = 16
"""sizeof(setentry): key and hash (Include/cpython/setobject.h)."""


def set_items(runtime: PythonRuntime, address: int) -> list[int]:
    """Addresses of a set's items; those of deleted entries are among them, and are no objects of any use.

    Raises MemoryFault, BadData.
    """
    if runtime.objects.type_of(address).name not in ("set", "frozenset"):
        raise BadData(f"no set at {address:#x}")
    offset, memory = runtime.layout.offset, runtime.memory
    count = memory.u64(address + offset("PySetObject", "mask")) + 1
    if count > _LIMIT:
        raise BadData(f"set at {address:#x} with {count} entries")
    words = memory.words(memory.u64(address + offset("PySetObject", "table")), count * _ENTRY // 8)
    return [key for key in words[::2] if key]


def deque_items(runtime: PythonRuntime, address: int, limit: int = 256) -> tuple[int, list[int]]:
    """The number of items of a deque, and the addresses of the first ``limit`` of them. Raises MemoryFault, BadData."""
    if runtime.objects.type_of(address).name != "collections.deque":
        raise BadData(f"no deque at {address:#x}")
    memory = runtime.memory
    size = memory.u64(address + DEQUE_SIZE)
    block, index = memory.u64(address + DEQUE_LEFT), memory.u64(address + DEQUE_LEFT_INDEX)
    if size > 1 << 40 or index >= BLOCK_ITEMS:
        raise BadData(f"no deque at {address:#x}")
    found: list[int] = []
    while len(found) < min(size, limit):
        take = min(BLOCK_ITEMS - index, size - len(found))
        found += memory.words(block + BLOCK_DATA + 8 * index, take)
        block, index = memory.u64(block + BLOCK_RIGHT), 0
    return size, found[:limit]


_QUEUE_LIMIT = 10_000
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
    items = runtime.objects.list_items(memory.u64(address + offset(form.struct, "lst")), _QUEUE_LIMIT)
    return items[memory.u64(address + offset(form.struct, "lst_pos")) :]


def _in_ring(runtime: PythonRuntime, address: int) -> tuple[int, ...]:
    offset, memory = runtime.layout.offset, runtime.memory
    first, items, capacity, count = (
        memory.u64(address + offset(_PARKING, f"buf.{name}")) for name in ("get_idx", "items", "items_cap", "num_items")
    )
    if not first < capacity <= _QUEUE_LIMIT or count > capacity:
        raise BadData(f"SimpleQueue at {address:#x} with {count} items")
    words = memory.words(items, capacity)
    return (words * 2)[first : first + count]
