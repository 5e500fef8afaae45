"""A C or C++ object in the target, read field by field by the offsets of a layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.errors import LayoutError

if TYPE_CHECKING:
    from gdbext.process.memory import Memory


@dataclass(frozen=True)
class Field:
    """One member: ``offset`` from the start of the object and ``size``, in bytes; ``type`` as C++ writes it.

    A bit-field has ``bit_offset`` (bits from the start of the object to its lowest bit) and ``bit_size``; both
    are 0 for an ordinary member.
    """

    name: str
    offset: int
    size: int
    type: str
    bit_offset: int = 0
    bit_size: int = 0


@dataclass(frozen=True)
class Struct:
    """A class: its name in the layout, sizeof in bytes, and its members by name."""

    name: str
    size: int
    fields: Mapping[str, Field]

    def field(self, name: str) -> Field:
        """The member ``name``. Raises LayoutError when this version of the class has none."""
        found = self.fields.get(name)
        if found is None:
            raise LayoutError(f"{self.name} has no member {name} in this layout")
        return found

    def offset(self, name: str) -> int:
        """Offset of the member ``name``, in bytes. Raises LayoutError."""
        return self.field(name).offset


class StructView:
    """The object of class ``struct`` that starts at ``address``. Readers raise MemoryFault and LayoutError."""

    __slots__ = ("memory", "start", "struct")

    def __init__(self, memory: Memory, address: int, struct: Struct) -> None:
        self.memory = memory
        self.start = address
        self.struct = struct

    def address(self, field: str) -> int:
        """Absolute address of a member."""
        return self.start + self.struct.offset(field)

    def u64(self, field: str) -> int:
        """Eight bytes, unsigned."""
        return self.memory.u64(self.address(field))

    def u32(self, field: str) -> int:
        """Four bytes, unsigned."""
        return self.memory.u32(self.address(field))

    def u16(self, field: str) -> int:
        """Two bytes, unsigned."""
        return self.memory.u16(self.address(field))

    def u8(self, field: str) -> int:
        """One byte, unsigned."""
        return self.memory.u8(self.address(field))

    def i64(self, field: str) -> int:
        """Eight bytes, signed."""
        return self.memory.i64(self.address(field))

    def i32(self, field: str) -> int:
        """Four bytes, signed."""
        return self.memory.i32(self.address(field))

    def pointer(self, field: str) -> int:
        """A pointer."""
        return self.memory.u64(self.address(field))

    def bits(self, field: str) -> int:
        """A bit-field, unsigned (an ordinary member of at most eight bytes: its whole value)."""
        found = self.struct.field(field)
        value = int.from_bytes(self.memory.read(self.start + found.offset, found.size), "little")
        if found.bit_size:
            value = value >> (found.bit_offset - 8 * found.offset) & (1 << found.bit_size) - 1
        return value

    def view(self, field: str, struct: Struct) -> StructView:
        """The member as an object of class ``struct`` (held by value, not pointed to)."""
        return StructView(self.memory, self.address(field), struct)
