"""A small reader of DWARF 4 and 5 types, for layout generation only (never on the way to a report).

pyelftools would do, but gdb's embedded Python usually lacks it, and a layout can be generated from inside
gdb on a machine that has nothing but a compiler. Only one linked object with uncompressed sections, little
endian, as our own compiler run leaves it, is understood. Source: DWARF 5 standard, section 7.5.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdbext.errors import SymbolFileError

TAG_ARRAY = 0x01
TAG_CLASS = 0x02
TAG_ENUMERATION = 0x04
TAG_MEMBER = 0x0D
TAG_POINTER = 0x0F
TAG_REFERENCE = 0x10
TAG_STRUCTURE = 0x13
TAG_SUBROUTINE_TYPE = 0x15
TAG_TYPEDEF = 0x16
TAG_UNION = 0x17
TAG_INHERITANCE = 0x1C
TAG_PTR_TO_MEMBER = 0x1F
TAG_SUBRANGE = 0x21
TAG_BASE_TYPE = 0x24
TAG_CONST = 0x26
TAG_ENUMERATOR = 0x28
TAG_VARIABLE = 0x34
TAG_VOLATILE = 0x35
TAG_NAMESPACE = 0x39
TAG_RVALUE_REFERENCE = 0x42

AT_SIBLING = 0x01
AT_NAME = 0x03
AT_BYTE_SIZE = 0x0B
AT_BIT_OFFSET = 0x0C
AT_BIT_SIZE = 0x0D
AT_CONST_VALUE = 0x1C
AT_PRODUCER = 0x25
AT_UPPER_BOUND = 0x2F
AT_COUNT = 0x37
AT_DATA_MEMBER_LOCATION = 0x38
AT_DECLARATION = 0x3C
AT_ENCODING = 0x3E
AT_SPECIFICATION = 0x47
AT_TYPE = 0x49
AT_VIRTUALITY = 0x4C
AT_DATA_BIT_OFFSET = 0x6B
AT_STR_OFFSETS_BASE = 0x72

_FIXED = {0x0B: "<B", 0x05: "<H", 0x06: "<I", 0x07: "<Q", 0x0C: "<B", 0x11: "<B", 0x12: "<H", 0x13: "<I",
          0x14: "<Q", 0x01: "<Q", 0x17: "<I", 0x20: "<Q", 0x29: "<B", 0x2A: "<H", 0x2C: "<I", 0x25: "<B",
          0x26: "<H", 0x28: "<I"}  # fmt: skip
_UNIT_REFERENCES = (0x11, 0x12, 0x13, 0x14, 0x15)
_UT_TYPES = (2, 6)


class DwarfFile:
    """The sections and symbols of one linked ELF file. Raises SymbolFileError when it is not what we compiled."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise SymbolFileError(f"{path} is no 64-bit little-endian ELF file")
        table, count, names = struct.unpack_from("<Q", self.data, 0x28)[0], *struct.unpack_from("<HH", self.data, 0x3C)
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.data, table + 64 * i) for i in range(count)]
        strings = headers[names][4]
        self.headers = headers
        self.sections = {self._text(self.data, strings + h[0]): h for h in headers}

    @staticmethod
    def _text(data: bytes, at: int) -> str:
        return data[at : data.index(b"\0", at)].decode("utf-8", "replace")

    def section(self, name: str) -> bytes:
        """Contents of a section, empty when there is none."""
        header = self.sections.get(name)
        if header is None or header[1] == 8:
            return b""
        return self.data[header[4] : header[4] + header[5]]

    def symbols(self) -> dict[str, bytes]:
        """Contents of every named data object: name to bytes (constants that the compiler evaluated)."""
        table = self.sections[".symtab"]
        strings = self.headers[table[6]][4]
        found: dict[str, bytes] = {}
        for at in range(table[4], table[4] + table[5], 24):
            name, info, _other, index, value, size = struct.unpack_from("<IBBHQQ", self.data, at)
            if info & 15 == 1 and 0 < index < len(self.headers):
                section = self.headers[index]
                start = section[4] + value - section[3]
                contents = b"\0" * size if section[1] == 8 else self.data[start : start + size]
                found[self._text(self.data, strings + name)] = contents
        return found


class Die:
    """One debugging information entry: ``tag``, attributes by number, and its children on demand."""

    __slots__ = ("attributes", "end", "has_children", "offset", "tag", "unit")

    def __init__(self, unit: Unit, offset: int, end: int, tag: int, children: bool, attributes: dict[int, Any]) -> None:
        self.unit, self.offset, self.end = unit, offset, end
        self.tag, self.has_children, self.attributes = tag, children, attributes

    def get(self, attribute: int, default: Any = None) -> Any:
        """Value of an attribute."""
        return self.attributes.get(attribute, default)

    @property
    def name(self) -> str:
        """DW_AT_name, empty for an unnamed type."""
        return str(self.attributes.get(AT_NAME, ""))

    def type(self) -> Die | None:
        """The entry that DW_AT_type refers to; None is void."""
        reference = self.attributes.get(AT_TYPE)
        return None if reference is None else self.unit.die(reference)

    def children(self) -> Iterator[Die]:
        """Direct children, grandchildren skipped."""
        if not self.has_children:
            return
        at = self.end
        while True:
            child = self.unit.die(at)
            if child is None:
                return
            yield child
            at = child.after()

    def after(self) -> int:
        """Offset behind this entry and all its descendants."""
        sibling = self.attributes.get(AT_SIBLING)
        if sibling is not None:
            return int(sibling)
        if not self.has_children:
            return self.end
        at = self.end
        while True:
            child = self.unit.die(at)
            if child is None:
                return at + 1
            at = child.after()


class Unit:
    """The first compile unit of a file (we compile exactly one)."""

    def __init__(self, file: DwarfFile) -> None:
        self.info = file.section(".debug_info")
        self._strings = file.section(".debug_str")
        self._line_strings = file.section(".debug_line_str")
        self._string_offsets = file.section(".debug_str_offsets")
        self._string_base = 8
        self._dies: dict[int, Die | None] = {}
        if len(self.info) < 12:
            raise SymbolFileError("the compiled file has no debug information")
        self._abbreviations = self._read_abbreviations(file.section(".debug_abbrev"), self._read_header())
        root = self.die(self._first)
        if root is None:
            raise SymbolFileError("the compile unit is empty")
        self._string_base = root.get(AT_STR_OFFSETS_BASE, 8)
        self._dies.clear()
        self.root = self.die(self._first) or root
        self._scopes: tuple[list[int], list[tuple[int, str, Die]]] | None = None

    def _read_header(self) -> int:
        length, version = struct.unpack_from("<IH", self.info, 0)
        if length >= 0xFFFFFFF0 or version not in (4, 5):
            raise SymbolFileError(f"DWARF version {version} is not understood")
        if version == 5:
            kind, _address, table = struct.unpack_from("<BBI", self.info, 6)
            if kind in _UT_TYPES:
                raise SymbolFileError("type units are not understood")
            self._first = 12
        else:
            table = struct.unpack_from("<I", self.info, 6)[0]
            self._first = 11
        return int(table)

    @staticmethod
    def _read_abbreviations(data: bytes, at: int) -> dict[int, tuple[int, bool, list[tuple[int, int, int]]]]:
        found: dict[int, tuple[int, bool, list[tuple[int, int, int]]]] = {}
        while True:
            code, at = _uleb(data, at)
            if code == 0:
                return found
            tag, at = _uleb(data, at)
            children, at = bool(data[at]), at + 1
            specification: list[tuple[int, int, int]] = []
            while True:
                attribute, at = _uleb(data, at)
                form, at = _uleb(data, at)
                constant = 0
                if form == 0x21:
                    constant, at = _sleb(data, at)
                if attribute == 0 and form == 0:
                    break
                specification.append((attribute, form, constant))
            found[code] = (tag, children, specification)

    def die(self, offset: int) -> Die | None:
        """The entry at an offset of .debug_info; None is the null entry that ends a list of siblings."""
        if offset not in self._dies:
            self._dies[offset] = self._read(offset)
        return self._dies[offset]

    def _read(self, offset: int) -> Die | None:
        code, at = _uleb(self.info, offset)
        if code == 0:
            return None
        tag, children, specification = self._abbreviations[code]
        attributes: dict[int, Any] = {}
        for attribute, form, constant in specification:
            attributes[attribute], at = (constant, at) if form == 0x21 else self._form(form, at)
        return Die(self, offset, at, tag, children, attributes)

    def _form(self, form: int, at: int) -> tuple[Any, int]:
        info = self.info
        fixed = _FIXED.get(form)
        if fixed is not None:
            value = struct.unpack_from(fixed, info, at)[0]
            at += struct.calcsize(fixed)
            return (self._indexed(value) if 0x25 <= form <= 0x28 else value), at
        if form in (0x0E, 0x1F):
            where = struct.unpack_from("<I", info, at)[0]
            return DwarfFile._text(self._strings if form == 0x0E else self._line_strings, where), at + 4
        if form == 0x08:
            end = info.index(b"\0", at)
            return info[at:end].decode("utf-8", "replace"), end + 1
        if form == 0x19:
            return True, at
        if form == 0x0D:
            return _sleb(info, at)
        if form in (0x0F, 0x15, 0x1B, 0x22, 0x23):
            return _uleb(info, at)
        if form == 0x1A:
            index, at = _uleb(info, at)
            return self._indexed(index), at
        if form == 0x10:
            return struct.unpack_from("<I", info, at)[0], at + 4
        if form == 0x1E:
            return info[at : at + 16], at + 16
        return self._block(form, at)

    def _block(self, form: int, at: int) -> tuple[bytes, int]:
        if form in (0x18, 0x09):
            size, at = _uleb(self.info, at)
        elif form in (0x0A, 0x03, 0x04):
            code = {0x0A: "<B", 0x03: "<H", 0x04: "<I"}[form]
            size = struct.unpack_from(code, self.info, at)[0]
            at += struct.calcsize(code)
        else:
            raise SymbolFileError(f"DWARF form {form:#x} is not understood")
        return self.info[at : at + size], at + size

    def _indexed(self, index: int) -> str:
        at = self._string_base + 4 * index
        if at + 4 > len(self._string_offsets):
            return ""
        return DwarfFile._text(self._strings, struct.unpack_from("<I", self._string_offsets, at)[0])

    def qualified_name(self, die: Die) -> str:
        """``die``'s name with its namespaces and enclosing classes."""
        name = die.name or "(anonymous)"
        outer = self._scope_of(die.offset)
        return f"{outer}::{name}" if outer else name

    def _scope_of(self, offset: int) -> str:
        if self._scopes is None:
            found: list[tuple[int, str, Die]] = []
            self._collect(self.root, "", found)
            self._scopes = ([entry[0] for entry in found], found)
        starts, entries = self._scopes
        index = bisect_right(starts, offset) - 1
        if index < 0:
            return ""
        start, outer, die = entries[index]
        if start == offset or die.tag == TAG_NAMESPACE:
            return outer
        return self._within(die, outer, offset)

    def _within(self, die: Die, outer: str, offset: int) -> str:
        path = f"{outer}::{die.name}" if outer else die.name
        for child in die.children():
            if child.offset == offset:
                return path
            if child.offset < offset < child.after():
                return self._within(child, path, offset)
        return path

    def _collect(self, parent: Die, outer: str, found: list[tuple[int, str, Die]]) -> None:
        """Every entry at namespace level: (offset, name of its scope, entry), in order of offset."""
        for child in parent.children():
            found.append((child.offset, outer, child))
            if child.tag == TAG_NAMESPACE and child.has_children:
                name = child.name or "(anonymous namespace)"
                self._collect(child, f"{outer}::{name}" if outer else name, found)


def _uleb(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _sleb(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value - (1 << shift) if byte & 0x40 else value), at
