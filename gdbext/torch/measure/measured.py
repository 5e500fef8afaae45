"""The sizes, offsets, enumerators and constants that a compiler gave to a set of wants, as the members of a layout
document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from gdbext.torch.measure import compiler
from gdbext.torch.measure.wants import CLASSES, CompileUnit, Die, Wants, name_of, strip, type_of, value_of

_POINTERS = {"DW_TAG_pointer_type": "*", "DW_TAG_reference_type": "&", "DW_TAG_rvalue_reference_type": "&&"}
_ARRAY = "DW_TAG_array_type"
_FUNCTION = "DW_TAG_subroutine_type"
_BASE = "DW_TAG_inheritance"
_OPEN_NAMESPACES = ("std::", "ska::", "__gnu_cxx::")
_FOLLOWED_TEMPLATES = ("std::optional<", "std::variant<")
_DEFAULT_ARGUMENTS = (
    "std::allocator<",
    "std::char_traits<",
    "std::default_delete<",
    "std::hash<",
    "std::equal_to<",
    "std::less<",
)
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

    def __init__(self, unit: CompileUnit) -> None:
        self._unit = unit
        self._names: dict[int, str] = {}

    def struct(self, die: Die, opened: bool | None = None) -> dict[str, Any]:
        """One entry of "structs". ``opened`` overrides whether nested classes get dotted names."""
        name = self.type_name(die)
        if opened is None:
            opened = name.startswith(_OPEN_NAMESPACES)
        fields: dict[str, dict[str, Any]] = {}
        for member, entry in self._fields(die, 0, "", opened, 0):
            fields.setdefault(member, entry)
        return {"size": self.size(die), "fields": fields}

    def enum(self, die: Die) -> dict[str, int]:
        """Enumerator name to value, in order of declaration."""
        return {
            name_of(child): int(value_of(child, "DW_AT_const_value"))
            for child in die.iter_children()
            if child.tag == "DW_TAG_enumerator"
        }

    def nested(self, die: Die) -> Iterator[Die]:
        """Classes that ``die`` and its bases hold by value and that deserve a struct of their own."""
        for member in self._members(die):
            kind = strip(type_of(member))
            while kind and kind.tag == _ARRAY:
                kind = strip(type_of(kind))
            if not kind or kind.tag not in CLASSES:
                continue
            name = self.type_name(kind)
            if member.tag == _BASE or not name_of(kind):
                yield from self.nested(kind)
            elif not name.startswith(_OPEN_NAMESPACES) or name.startswith(_FOLLOWED_TEMPLATES):
                yield kind
            elif name.startswith("std::array<"):
                yield from self.nested(kind)

    def size(self, die: Die | None) -> int:
        """The ``sizeof`` of a type, in bytes."""
        die = strip(die)
        if not die or die.tag == _FUNCTION:
            return 0
        size = value_of(die, "DW_AT_byte_size")
        if size is not None:
            return int(size)
        if die.tag == _ARRAY:
            return self.size(type_of(die)) * self._elements(die)
        return 8 if die.tag in _POINTERS else 0

    @staticmethod
    def _elements(die: Die) -> int:
        total = 1
        for child in die.iter_children():
            if child.tag == "DW_TAG_subrange_type":
                count = value_of(child, "DW_AT_count")
                if count is None:
                    bound = value_of(child, "DW_AT_upper_bound")
                    count = bound + 1 if isinstance(bound, int) else 0
                total *= count if isinstance(count, int) else 0
        return total

    def type_name(self, die: Die | None) -> str:
        """The type as C++ writes it, default template arguments left out."""
        die = strip(die)
        if not die:
            return "void"
        if die.offset not in self._names:
            self._names[die.offset] = self._make_name(die)
        return self._names[die.offset]

    def _make_name(self, die: Die) -> str:
        if die.tag in _POINTERS:
            return self.type_name(type_of(die)) + _POINTERS[die.tag]
        if die.tag == _ARRAY:
            return f"{self.type_name(type_of(die))}[{self._elements(die)}]"
        if die.tag == _FUNCTION:
            return f"{self.type_name(type_of(die))}()"
        if die.tag == "DW_TAG_base_type":
            return name_of(die)
        return shorten(self._unit.qualified_name(die))

    @staticmethod
    def _members(die: Die) -> Iterator[Die]:
        for child in die.iter_children():
            if value_of(child, "DW_AT_declaration"):
                continue
            if child.tag == "DW_TAG_member" or (child.tag == _BASE and not value_of(child, "DW_AT_virtuality")):
                yield child

    def _fields(
        self, die: Die, at: int, prefix: str, opened: bool, depth: int, base: str = ""
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if depth > _MAX_NESTING:
            return
        later = []
        for member in self._members(die):
            kind = strip(type_of(member))
            offset = at + self._location(member)
            if member.tag == _BASE:
                if kind:
                    later.append((kind, offset))
            elif not name_of(member) and kind:
                yield from self._fields(kind, offset, prefix, opened, depth + 1, base)
            else:
                yield from self._member(member, kind, offset, prefix, opened, depth, base)
        for kind, offset in later:
            inherited = base if opened else self.type_name(kind)
            yield from self._fields(kind, offset, prefix, opened, depth + 1, inherited)

    def _member(
        self, member: Die, kind: Die | None, offset: int, prefix: str, opened: bool, depth: int, base: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        name = prefix + ("_vptr" if name_of(member).startswith("_vptr") else name_of(member))
        type_text = self.type_name(kind)[:_MAX_TYPE_TEXT]
        entry: dict[str, Any] = {"offset": offset, "size": self.size(kind), "type": type_text}
        bits = value_of(member, "DW_AT_bit_size")
        if bits is not None:
            first = bit_position(offset, member, self.size(kind))
            entry.update(offset=first // 8, size=(first % 8 + int(bits) + 7) // 8, bit_offset=first, bit_size=int(bits))
        if base:
            entry["base"] = base
        yield name, entry
        if opened and kind and kind.tag in CLASSES:
            inner = list(islice(self._fields(kind, offset, name + ".", opened, depth + 1, base), _MAX_OPENED + 1))
            if len(inner) <= _MAX_OPENED:
                yield from inner

    @staticmethod
    def _location(member: Die) -> int:
        location = value_of(member, "DW_AT_data_member_location", 0)
        return location if isinstance(location, int) else 0


def bit_position(offset: int, member: Die, storage: int) -> int:
    """Bits from the class to a bit-field's lowest bit: DWARF 5 says it, DWARF 4 counts from the storage's top."""
    from_class = value_of(member, "DW_AT_data_bit_offset")
    if from_class is not None:
        return int(8 * offset + from_class)
    return int(8 * offset + 8 * storage - value_of(member, "DW_AT_bit_offset", 0) - value_of(member, "DW_AT_bit_size"))


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


@dataclass
class Measured:
    """The results by the names of the document; ``absent`` are the wants that these headers lack, ``units`` the digests
    of what was compiled."""

    compiler: str
    structs: dict[str, Any] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    units: list[str] = field(default_factory=list)

    def add(self, other: Measured) -> None:
        """Take what ``other`` has besides; where both have a class, the one that is here stays."""
        self.structs = {**other.structs, **self.structs}
        self.enums = {**other.enums, **self.enums}
        self.constants = {**other.constants, **self.constants}
        self.absent = [*self.absent, *other.absent]
        self.units = [*self.units, *other.units]


Known = dict[str, Measured]
"""The results of other headers, by the digest of the unit."""


def measure(wants: Wants, command: str, flags: Sequence[str], folder: Path, known: Known | None = None) -> Measured:
    """Compile ``wants`` in ``folder`` and read what came out, unless the same unit is ``known``. Raises LayoutError."""
    unit = compiler.preprocess(wants, command, flags, folder)
    found = known.get(unit.digest) if known is not None else None
    if not found:
        found = _read(wants, compiler.build(unit))
        found.units.append(unit.digest)
        if known is not None:
            known[unit.digest] = found
    return replace(found)


def _read(wants: Wants, built: compiler.Compiled) -> Measured:
    """The answers of the debug information to each want."""
    unit = CompileUnit(built.library)
    reader = StructReader(unit)
    contents, variables = unit.contents(), unit.variables()
    result = Measured(built.compiler)
    result.absent += [wants.all[index].name for index in sorted(built.absent)]
    held: list[Die] = []
    for index, want in enumerate(wants.all):
        if index in built.absent:
            continue
        if want.kind == "constant":
            result.constants[want.name] = int.from_bytes(contents[f"want_{index}"], "little", signed=True)
            continue
        die = _pointee(variables[f"want_{index}"])
        if not die or value_of(die, "DW_AT_declaration"):
            result.absent.append(want.name)
        elif want.kind == "enum":
            result.enums[want.name] = reader.enum(die)
        else:
            # C has no namespace to tell the telling classes from the rest: all are opened, none is followed.
            result.structs[want.name] = reader.struct(die, None if wants.cplusplus else True)
            held.append(die)
    if wants.cplusplus:
        _add_nested(reader, held, result)
    return result


def _pointee(variable: Die) -> Die | None:
    pointer = strip(type_of(variable))
    return strip(type_of(pointer)) if pointer else None


def _add_nested(reader: StructReader, pending: list[Die], result: Measured) -> None:
    """Add the classes that wanted classes hold by value, and so on."""
    seen = {die.offset for die in pending}
    while pending:
        for die in reader.nested(pending.pop()):
            name = reader.type_name(die)
            if die.offset in seen or value_of(die, "DW_AT_declaration"):
                continue
            seen.add(die.offset)
            pending.append(die)
            if name not in result.structs:
                result.structs[name] = reader.struct(die)
