"""Line tables made of bytes."""

from __future__ import annotations

from gdbext.cpython.abi import LineTable
from gdbext.cpython.objects import code


def test_an_instruction_outside_every_range_has_no_line() -> None:
    assert code.line_at([(0, 4, 7)], 4) is None


def test_location_without_a_line() -> None:
    """Code 15 (no location) of length 1, then code 10 (same line, one code unit)."""
    table = bytes([0x80 | 15 << 3, 0x80 | 11 << 3, 0, 0])
    assert code.parse(LineTable.LOCATIONS, table, 5) == [(0, 2, None), (2, 4, 6)]
