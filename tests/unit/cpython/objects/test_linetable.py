"""Line tables made of bytes."""

from __future__ import annotations

import pytest

from gdbext.cpython.abi import LineTable
from gdbext.cpython.objects import code


def test_an_instruction_outside_every_range_has_no_line() -> None:
    assert code.line_at([(0, 4, 7)], 4) is None


def test_location_without_a_line() -> None:
    """Code 15 (no location) of length 1, then code 10 (same line, one code unit)."""
    table = bytes([0x80 | 15 << 3, 0x80 | 11 << 3, 0, 0])
    assert code.parse(LineTable.LOCATIONS, table, 5) == [(0, 2, None), (2, 4, 6)]


@pytest.mark.parametrize("form", LineTable)
@pytest.mark.parametrize("table", [b"", b"\xf0", b"\xff" * 50, b"\x00" * 50, bytes(range(256))])
def test_garbage_ends(form: LineTable, table: bytes) -> None:
    ranges = code.parse(form, table, 1)
    assert len(ranges) <= 257
    assert all(start < end for start, end, _ in ranges)
