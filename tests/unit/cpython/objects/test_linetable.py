"""Line tables made of bytes."""

from __future__ import annotations

from gdbext.cpython.abi import LineTable
from gdbext.cpython.objects import code


def test_location_without_a_line() -> None:
    """Code 15 (no location) of length 1, then code 10 (same line, one code unit); outside every range."""
    assert code.line_at([(0, 4, 7)], 4) is None
    table = bytes([0x80 | 15 << 3, 0x80 | 11 << 3, 0, 0])
    assert code.parse(LineTable.LOCATIONS, table, 5) == [(0, 2, None), (2, 4, 6)]
