"""A C++ object as a debugger hands it over: its type's name and where it is, or its bytes where it is in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import BadData
from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.process.memory import Memory


class CppObject(Record):
    """``type`` is the qualified name without typedefs, ``const`` and ``&``."""

    type: str
    address: int
    """0 where it is not in memory."""
    raw: bytes = b""
    """Its bytes, where it is not in memory."""
    element: str = ""
    """The type's first template argument; "" where there is none or the debugger does not know it."""
    element_size: int = 0
    """``sizeof`` of that."""

    def number(self, memory: Memory, offset: int, size: int) -> int:
        """An unsigned integer in it. Raises MemoryFault, BadData."""
        if self.address:
            return int.from_bytes(memory.read(self.address + offset, size), "little")
        return int.from_bytes(self.bytes(memory, offset + size)[offset:], "little")

    def bytes(self, memory: Memory, size: int) -> bytes:
        """Its first ``size`` bytes. Raises MemoryFault, BadData where it has less."""
        if self.address:
            return memory.read(self.address, size)
        if len(self.raw) < size:
            raise BadData("it is not in memory")
        return self.raw[:size]

    def place(self) -> int:
        """Its address. Raises BadData where it has none."""
        if not self.address:
            raise BadData("it is not in memory")
        return self.address
