"""Sets and deques of Python in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi.task_layout import (
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
    """How many items a deque has, and the addresses of the first ``limit`` of them. Raises MemoryFault, BadData."""
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
