"""From DWARF types to the "structs" and "enums" of a layout document."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from gdbext.layouts.measure import dwarf
from gdbext.layouts.measure.dwarf import Die, Unit

_CLASSES = (dwarf.TAG_STRUCTURE, dwarf.TAG_CLASS, dwarf.TAG_UNION)
_QUALIFIERS = (dwarf.TAG_TYPEDEF, dwarf.TAG_CONST, dwarf.TAG_VOLATILE)
_POINTERS = {dwarf.TAG_POINTER: "*", dwarf.TAG_REFERENCE: "&", dwarf.TAG_RVALUE_REFERENCE: "&&"}
_OPEN_NAMESPACES = ("std::", "ska::", "__gnu_cxx::")
_FOLLOWED_TEMPLATES = ("std::optional<", "std::variant<")
_DEFAULT_ARGUMENTS = ("std::allocator<", "std::char_traits<", "std::default_delete<", "std::hash<",
                      "std::equal_to<", "std::less<")  # fmt: skip
_MAX_NESTING = 12
_MAX_OPENED = 64
_MAX_TYPE_TEXT = 200


class StructReader:
    """Reads the layout of C and C++ classes out of one compile unit.

    Fields of base classes are flattened into the derived class (entry "base" names the class they come from),
    members of anonymous unions and structs as well. Classes of the standard library and of ska:: are opened
    downwards with dotted names ("_M_impl._M_start"), since nothing but their leaves is of use; so are C's, up to
    64 members (CPython's runtime holds tables of thousands of static objects). Bit-fields carry
    "bit_offset" (from the start of the class, in bits) and "bit_size".
    """

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._names: dict[int, str] = {}

    def struct(self, die: Die, opened: bool | None = None) -> dict[str, Any]:
        """One entry of "structs". ``opened`` overrides whether nested classes get dotted names."""
        name = self.type_name(die)
        if opened is None:
            opened = name.startswith(_OPEN_NAMESPACES)
        fields: dict[str, dict[str, Any]] = {}
        for field, entry in self._fields(die, 0, "", opened, 0):
            fields.setdefault(field, entry)
        return {"size": self.size(die), "fields": fields}

    def enum(self, die: Die) -> dict[str, int]:
        """Enumerator name to value, in order of declaration."""
        return {child.name: int(child.get(dwarf.AT_CONST_VALUE)) for child in die.children()
                if child.tag == dwarf.TAG_ENUMERATOR}  # fmt: skip

    def nested(self, die: Die) -> Iterator[Die]:
        """Classes that ``die`` and its bases hold by value and that deserve a struct of their own."""
        for member in self._members(die):
            kind = self.strip(member.type())
            while kind is not None and kind.tag == dwarf.TAG_ARRAY:
                kind = self.strip(kind.type())
            if kind is None or kind.tag not in _CLASSES:
                continue
            name = self.type_name(kind)
            if member.tag == dwarf.TAG_INHERITANCE or not kind.name:
                yield from self.nested(kind)
            elif not name.startswith(_OPEN_NAMESPACES) or name.startswith(_FOLLOWED_TEMPLATES):
                yield kind
            elif name.startswith("std::array<"):
                yield from self.nested(kind)

    def strip(self, die: Die | None) -> Die | None:
        """The type behind typedefs, const and volatile."""
        for _ in range(64):
            if die is None or die.tag not in _QUALIFIERS:
                return die
            die = die.type()
        return die

    def size(self, die: Die | None) -> int:
        """sizeof, in bytes."""
        die = self.strip(die)
        if die is None or die.tag == dwarf.TAG_SUBROUTINE_TYPE:
            return 0
        size = die.get(dwarf.AT_BYTE_SIZE)
        if size is not None:
            return int(size)
        if die.tag == dwarf.TAG_ARRAY:
            return self.size(die.type()) * self._elements(die)
        return 8 if die.tag in _POINTERS else 0

    @staticmethod
    def _elements(die: Die) -> int:
        total = 1
        for child in die.children():
            if child.tag == dwarf.TAG_SUBRANGE:
                count = child.get(dwarf.AT_COUNT)
                if count is None:
                    bound = child.get(dwarf.AT_UPPER_BOUND)
                    count = bound + 1 if isinstance(bound, int) else 0
                total *= count if isinstance(count, int) else 0
        return total

    def type_name(self, die: Die | None) -> str:
        """The type as C++ writes it, default template arguments left out."""
        die = self.strip(die)
        if die is None:
            return "void"
        name = self._names.get(die.offset)
        if name is None:
            name = self._names[die.offset] = self._make_name(die)
        return name

    def _make_name(self, die: Die) -> str:
        if die.tag in _POINTERS:
            return self.type_name(die.type()) + _POINTERS[die.tag]
        if die.tag == dwarf.TAG_ARRAY:
            return f"{self.type_name(die.type())}[{self._elements(die)}]"
        if die.tag == dwarf.TAG_SUBROUTINE_TYPE:
            return f"{self.type_name(die.type())}()"
        if die.tag == dwarf.TAG_BASE_TYPE:
            return die.name
        return shorten(self._unit.qualified_name(die))

    @staticmethod
    def _members(die: Die) -> Iterator[Die]:
        for child in die.children():
            if child.get(dwarf.AT_DECLARATION):
                continue
            if child.tag == dwarf.TAG_MEMBER or (
                child.tag == dwarf.TAG_INHERITANCE and not child.get(dwarf.AT_VIRTUALITY)
            ):
                yield child

    def _fields(
        self, die: Die, at: int, prefix: str, opened: bool, depth: int, base: str = ""
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if depth > _MAX_NESTING:
            return
        later = []
        for member in self._members(die):
            kind = self.strip(member.type())
            offset = at + self._location(member)
            if member.tag == dwarf.TAG_INHERITANCE:
                if kind is not None:
                    later.append((kind, offset))
            elif not member.name and kind is not None:
                yield from self._fields(kind, offset, prefix, opened, depth + 1, base)
            else:
                yield from self._member(member, kind, offset, prefix, opened, depth, base)
        for kind, offset in later:
            inherited = base if opened else self.type_name(kind)
            yield from self._fields(kind, offset, prefix, opened, depth + 1, inherited)

    def _member(
        self, member: Die, kind: Die | None, offset: int, prefix: str, opened: bool, depth: int, base: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        name = prefix + ("_vptr" if member.name.startswith("_vptr") else member.name)
        type_text = self.type_name(kind)[:_MAX_TYPE_TEXT]
        entry: dict[str, Any] = {"offset": offset, "size": self.size(kind), "type": type_text}
        bits = member.get(dwarf.AT_BIT_SIZE)
        if bits is not None:
            first = bit_position(offset, member, self.size(kind))
            entry.update(offset=first // 8, size=(first % 8 + int(bits) + 7) // 8, bit_offset=first, bit_size=int(bits))
        if base:
            entry["base"] = base
        yield name, entry
        if opened and kind is not None and kind.tag in _CLASSES:
            inner = list(islice(self._fields(kind, offset, name + ".", opened, depth + 1, base), _MAX_OPENED + 1))
            if len(inner) <= _MAX_OPENED:
                yield from inner

    @staticmethod
    def _location(member: Die) -> int:
        location = member.get(dwarf.AT_DATA_MEMBER_LOCATION, 0)
        return location if isinstance(location, int) else 0


def bit_position(offset: int, member: Die, storage: int) -> int:
    """Bits from the class to a bit-field's lowest bit: DWARF 5 says it, DWARF 4 counts from the storage's top."""
    from_class = member.get(dwarf.AT_DATA_BIT_OFFSET)
    if from_class is not None:
        return int(8 * offset + from_class)
    return int(8 * offset + 8 * storage - member.get(dwarf.AT_BIT_OFFSET, 0) - member.get(dwarf.AT_BIT_SIZE))


def shorten(name: str) -> str:
    """A C++ type name without default template arguments and inline namespaces, as people write it."""
    name = name.replace("std::__cxx11::", "std::").replace("> >", ">>").replace("> >", ">>")
    for default in _DEFAULT_ARGUMENTS:
        start = name.find(", " + default)
        while start >= 0:
            name = name[:start] + name[_closing(name, start + 2 + len(default)) :]
            start = name.find(", " + default)
    return name.replace("std::basic_string<char>", "std::string")


def _closing(name: str, at: int) -> int:
    depth = 1
    while at < len(name) and depth:
        depth += {"<": 1, ">": -1}.get(name[at], 0)
        at += 1
    while at < len(name) and name[at] == " ":
        at += 1
    return at
