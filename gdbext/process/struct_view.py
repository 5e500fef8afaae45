"""Reading C++ structures of the target by field name."""

from __future__ import annotations

from collections.abc import Mapping

from gdbext.errors import LayoutError
from gdbext.model.record import Record
from gdbext.process.memory import Memory


class Field(Record):
    """One member of a C++ class: ``offset`` and ``size`` in bytes, ``type`` as its compiler wrote it.

    ``size`` 0 means that the layout does not say. A bit-field has ``bit_offset`` (bits from the start of the object
    to its lowest bit) and ``bit_size``; both are 0 for an ordinary member.
    """

    name: str
    offset: int
    size: int
    type: str = ""
    bit_offset: int = 0
    bit_size: int = 0


class Struct(Record):
    """A C++ class or struct: ``size`` in bytes (0 where unknown), members by name."""

    name: str
    size: int
    fields: Mapping[str, Field]

    def field(self, name: str) -> Field:
        """That member. Raises LayoutError naming what is missing."""
        try:
            return self.fields[name]
        except KeyError:
            raise LayoutError(f"the layout of {self.name} has no field {name}") from None

    def offset(self, name: str) -> int:
        """Offset of that member in bytes. Raises LayoutError."""
        return self.field(name).offset


class StructView:
    """A structure at an address of the target.

    Each access reads one field, so that a fault costs that field only. All accessors raise LayoutError for an unknown
    field, or one smaller than the number asked for, and MemoryFault where it cannot be read.
    """

    __slots__ = ("base", "memory", "struct")

    def __init__(self, memory: Memory, address: int, struct: Struct) -> None:
        self.memory = memory
        self.base = address
        self.struct = struct

    def __repr__(self) -> str:
        return f"StructView({self.struct.name} at {self.base:#x})"

    def address(self, name: str) -> int:
        """Where the field is."""
        return self.base + self.struct.field(name).offset

    def _address(self, name: str, width: int) -> int:
        field = self.struct.field(name)
        if 0 < field.size < width:
            raise LayoutError(f"{self.struct.name}::{name} has {field.size} bytes, {width} were asked for")
        return self.base + field.offset

    def u8(self, name: str) -> int:
        """Unsigned 8-bit value, also ``bool``."""
        return self.memory.u8(self._address(name, 1))

    def u16(self, name: str) -> int:
        """Unsigned 16-bit value."""
        return self.memory.u16(self._address(name, 2))

    def u32(self, name: str) -> int:
        """Unsigned 32-bit value."""
        return self.memory.u32(self._address(name, 4))

    def u64(self, name: str) -> int:
        """Unsigned 64-bit value; of a larger field, its first eight bytes."""
        return self.memory.u64(self._address(name, 8))

    def i32(self, name: str) -> int:
        """Signed 32-bit value."""
        return self.memory.i32(self._address(name, 4))

    def i64(self, name: str) -> int:
        """Signed 64-bit value."""
        return self.memory.i64(self._address(name, 8))

    def pointer(self, name: str) -> int:
        """A pointer; of a smart pointer, its first word."""
        return self.memory.pointer(self._address(name, 8))

    def raw(self, name: str) -> bytes:
        """The whole field as it is in memory. Raises LayoutError when the layout does not give its size."""
        field = self.struct.field(name)
        if field.size <= 0:
            raise LayoutError(f"the layout of {self.struct.name} does not say how large {name} is")
        return self.memory.read(self.base + field.offset, field.size)

    def bits(self, name: str) -> int:
        """A bit-field, unsigned; of an ordinary member of at most eight bytes its whole value."""
        field = self.struct.field(name)
        value = int.from_bytes(self.memory.read(self.base + field.offset, field.size), "little")
        if field.bit_size:
            value = value >> (field.bit_offset - 8 * field.offset) & (1 << field.bit_size) - 1
        return value

    def view(self, name: str, struct: Struct) -> StructView:
        """The field, itself a structure, with that structure's layout."""
        return StructView(self.memory, self.address(name), struct)

    def target(self, name: str, struct: Struct) -> StructView:
        """What the field, a pointer, points to."""
        return StructView(self.memory, self.pointer(name), struct)
