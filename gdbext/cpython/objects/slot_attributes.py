"""Attributes that a class keeps in ``__slots__``: in the object itself, without a dict.

Where they are is decided by type_new_descriptors (Objects/typeobject.c, 3.8 to 3.15): behind the base class, in
the order of ``ht_slots``.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.cpython.objects.objects import FLAG_HEAP_TYPE, ObjectReader

_BASES = 64
_POINTER = 8


def slot_attributes(objects: ObjectReader, address: int) -> Iterator[tuple[int, int]]:
    """(name, value) of the slots that are set, of the object's class and its bases. Raises MemoryFault, BadData."""
    memory, offset = objects.memory, objects.layout.offset
    kind = objects.type_of(address).address
    for _ in range(_BASES):
        base = memory.u64(kind + offset("PyTypeObject", "tp_base"))
        if not base:
            return
        if objects.type_info(kind).flags & FLAG_HEAP_TYPE:
            yield from _of_class(objects, address, kind, objects.type_info(base).size)
        kind = base


def _of_class(objects: ObjectReader, address: int, kind: int, start: int) -> Iterator[tuple[int, int]]:
    slots = objects.memory.u64(kind + objects.layout.offset("PyHeapTypeObject", "ht_slots"))
    names = objects.tuple_items(slots) if slots else ()
    if start + _POINTER * len(names) > objects.type_info(kind).size:
        return
    for number, name in enumerate(names):
        value = objects.memory.u64(address + start + _POINTER * number)
        if value:
            yield name, value
