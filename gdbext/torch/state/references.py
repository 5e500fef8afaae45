"""References that an object with a ``c10::intrusive_ptr_target`` counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import LayoutError

if TYPE_CHECKING:
    from gdbext.process.memory import Memory
    from gdbext.process.struct_view import Struct

_STRONG = (1 << 32) - 1
"""The lower half of ``combined_refcount_`` counts strong references (c10/util/intrusive_ptr.h, since 2.10)."""
_HAS_PYTHON_OBJECT = 1 << 63
"""``kHasPyObject``, in the half that counts weak references."""


def strong_references(memory: Memory, struct: Struct, address: int) -> int:
    """Strong references to the object of class ``struct`` at ``address``. Raises LayoutError, MemoryFault."""
    if "combined_refcount_" in struct.fields:
        return memory.u64(address + struct.fields["combined_refcount_"].offset) & _STRONG
    field = struct.fields.get("refcount_")
    if field is None:
        raise LayoutError(f"the layout of {struct.name} has no reference count")
    count = memory.u64(address + field.offset)
    return count if field.size == 8 else count & _STRONG


def weak_references(memory: Memory, struct: Struct, address: int) -> int:
    """Weak references to it, besides the one for all strong ones together. Raises LayoutError, MemoryFault."""
    if "combined_refcount_" in struct.fields:
        word = memory.u64(address + struct.fields["combined_refcount_"].offset)
        return ((word & ~_HAS_PYTHON_OBJECT) >> 32) - 1
    field = struct.fields.get("weakcount_")
    if field is None:
        raise LayoutError(f"the layout of {struct.name} has no count of weak references")
    count = memory.u64(address + field.offset)
    return (count if field.size == 8 else count & _STRONG) - 1
