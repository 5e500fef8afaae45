"""LEB128, DWARF's numbers of variable length (DWARF 5, section 7.6)."""

from __future__ import annotations

from gdbext.errors import BadData

MAX_BYTES = 10
"""A 64-bit number takes ten; more is damage."""


def uleb128(data: bytes, position: int) -> tuple[int, int]:
    """The unsigned number at ``position`` and the position after it. Raises BadData when it does not end."""
    if position < len(data):
        byte = data[position]
        if byte < 0x80:
            return byte, position + 1
    result = 0
    for index, byte in enumerate(data[position : position + MAX_BYTES]):
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return result, position + index + 1
    raise BadData("LEB128 number does not end")


def sleb128(data: bytes, position: int) -> tuple[int, int]:
    """The signed number at ``position`` and the position after it. Raises BadData when it does not end."""
    result, after = uleb128(data, position)
    bits = 7 * (after - position)
    if result >> (bits - 1):
        result -= 1 << bits
    return result, after
