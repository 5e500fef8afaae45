"""Bytecode offset to source line, in the three formats that CPython has had.

- co_lnotab (3.8, 3.9): Objects/lnotab_notes.txt; pairs of (unsigned address increment, signed line increment).
- co_linetable of 3.10 (PEP 626): Objects/lnotab_notes.txt; pairs of (unsigned length, signed line increment),
  where -128 means that the range has no line.
- the location table of 3.11 and later: Objects/locations.md (3.12; InternalDocs/code_objects.md in 3.13).

All offsets are bytes from the start of the bytecode; a line is None where the table says that there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from gdbext.cpython.abi.python_abi import LineTable

Range = tuple[int, int, Optional[int]]
"""First byte, end byte (exclusive), line."""

_NO_LINE = -128  # 3.10: "this range has no line number"
CODE_UNIT = 2
"""sizeof(_Py_CODEUNIT), bytes."""
_LONG, _NO_COLUMNS, _NONE = 14, 13, 15  # 3.11 location codes; 10-12 are "one line" forms, below are "short"
_END = 1 << 62


def line_at(ranges: list[Range], offset: int) -> int | None:
    """The line of the instruction at byte ``offset``; None if it has none or no range covers it."""
    for start, end, line in ranges:
        if start <= offset < end:
            return line
    return None


def parse(form: LineTable, table: bytes, first_line: int) -> list[Range]:
    """All ranges of a code object's table, which starts at line ``first_line``."""
    readers = {
        LineTable.LINE_INCREMENTS: _lnotab,
        LineTable.LINE_RANGES: _linetable,
        LineTable.LOCATIONS: _locations,
    }
    return list(readers[form](table, first_line))


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _lnotab(table: bytes, line: int) -> Iterator[Range]:
    """3.8, 3.9. Increments may be zero, so that long distances take several pairs."""
    start = end = 0
    for index in range(0, len(table) - 1, 2):
        end += table[index]
        if end > start:
            yield start, end, line
            start = end
        line += _signed(table[index + 1])
    yield start, _END, line


def _linetable(table: bytes, line: int) -> Iterator[Range]:
    """3.10. A range of length zero only moves the line."""
    start = 0
    for index in range(0, len(table) - 1, 2):
        length, delta = table[index], _signed(table[index + 1])
        if delta != _NO_LINE:
            line += delta
        if length:
            yield start, start + length, None if delta == _NO_LINE else line
            start += length


def _locations(table: bytes, line: int) -> Iterator[Range]:
    """3.11 and later. The columns are skipped: the first byte of every entry has its top bit set, no other has."""
    start = position = 0
    size = len(table)
    while position < size:
        first = table[position]
        code = (first >> 3) & 15
        end = start + ((first & 7) + 1) * CODE_UNIT
        position += 1
        if code in (_LONG, _NO_COLUMNS):
            line += _signed_varint(table, position)
        elif 10 <= code <= 12:
            line += code - 10
        yield start, end, None if code == _NONE else line
        start = end
        while position < size and not table[position] & 0x80:
            position += 1


def _signed_varint(table: bytes, position: int) -> int:
    """Six bits a byte, least significant first, 0x40 for "more"; the lowest bit of the result is the sign."""
    value = shift = 0
    while position < len(table) and shift < 60:
        byte = table[position]
        value |= (byte & 63) << shift
        position += 1
        shift += 6
        if not byte & 64:
            break
    return -(value >> 1) if value & 1 else value >> 1
