"""Which instructions are in the loop around another one, by this Python's own code; lines of made-up tables."""

from __future__ import annotations

import dis
import sys
import time

import pytest

from gdbext.cpython.abi import LineTable
from gdbext.cpython.abi.bytecode import BYTECODES, is_in_loop
from gdbext.cpython.objects import code as lines

FORM = BYTECODES.get(sys.version_info[:2])


def save(place: str) -> None:
    kept = None
    try:
        open(place)  # noqa: SIM115 - before the loop
    except OSError as error:
        kept = error
    while kept is not None:
        try:
            print(place)
        except OSError as error:
            kept = error
        time.sleep(1)


def offset_of(name: str) -> int:
    found = list(dis.get_instructions(save))
    load = next(number for number, one in enumerate(found) if one.argval == name and one.opname.startswith("LOAD"))
    return next(one.offset for one in found[load:] if one.opname.startswith(("CALL", "PRECALL")))


@pytest.mark.skipif(FORM is None, reason="no table of this Python's bytecode")
def test_what_failed_before_the_loop_is_not_in_it() -> None:
    code = save.__code__.co_code
    assert is_in_loop(FORM, code, offset_of("sleep"), offset_of("print"))
    assert not is_in_loop(FORM, code, offset_of("sleep"), offset_of("open"))
    assert not is_in_loop(FORM, code, offset_of("open"), offset_of("print")), "in no loop at all"


def test_location_without_a_line() -> None:
    """Code 15 (no location) of length 1, then code 10 (same line, one code unit); outside every range."""
    assert lines.line_at([(0, 4, 7)], 4) is None
    table = bytes([0x80 | 15 << 3, 0x80 | 11 << 3, 0, 0])
    assert lines.parse(LineTable.LOCATIONS, table, 5) == [(0, 2, None), (2, 4, 6)]
