"""Reads JSON objects back as the records that they were written from (plain_json.py).

Nothing in a document is trusted: a member of another type, a text or a list that is too long, a number beyond 64 bits
are refused with BadData, which says where. Unknown members are ignored: a newer version may add some. A missing one has
its default. A word that an enumeration does not have is that of a later version: a LaterWord. Internal fields have
their defaults; a record with one that has none cannot be read back: such a member is null or empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from gdbext.engine.numbers import integer
from gdbext.engine.vocabulary import Section
from gdbext.errors import BadData
from gdbext.render.annotation_names import alternatives, arguments_of, meaning
from gdbext.render.plain_json import Way, annotation_texts, family_of, members_of, plain

Reader = Callable[[Any, str], Any]
"""Reads a value; its name in the document, for errors."""
RecordType = TypeVar("RecordType")

MAX_TEXT = 1 << 20
MAX_ITEMS = 1 << 20
_WORD = (1 << 64) - 1
_MOST = 1e18
"""The largest amount: 30 thousand million years in seconds."""


class LaterWord(str):
    """A word that is none of the enumeration's: that of a later version. It equals no member."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The word, as a member has it."""
        return str(self)


def from_json(kind: type[RecordType], value: Any, where: str) -> RecordType:
    """The record that an object describes. Raises BadData."""
    read: Any = _record_reader  # mypy: the cache hides its type
    record: RecordType = read(kind)(value, where)
    return record


def section_from_json(kind: type[Section], value: Any, where: str) -> Section:
    """The section that a member of a report describes. Raises BadData."""
    if not kind.only_member:
        return from_json(kind, value, where)
    reader: Any = _reader_of(kind, annotation_texts(kind)[kind.only_member])
    make: Any = kind
    section: Section = make(reader(value, where))
    return section


@cache
def _record_reader(kind: Any) -> Reader | None:
    """Reads records of that type; None where they cannot be read back."""
    limits = kind.json_limits() if hasattr(kind, "json_limits") else {}
    members = {member.attribute: member for member in members_of(kind) if member.is_field}
    defaults = getattr(kind, "_field_defaults", vars(kind))
    names = getattr(kind, "_fields", members)
    values = [defaults.get(name) for name in names]
    steps: list[tuple[int, str, Reader]] = []
    inline: list[tuple[int, Reader]] = []
    needed = set()
    for position, name in enumerate(names):
        member = members.get(name)
        reader = _reader_of(kind, member.type, limits.get(name)) if member else None
        if not member or not reader:
            if name not in defaults:
                return None
        elif member.way is Way.INLINE:
            inline.append((position, _inline_reader(reader, kind, member.type, defaults.get(name))))
        else:
            steps.append((position, member.name, reader))
            needed |= set() if member.has_default else {member.name}

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise refusal(value, where, "an object")
        if not needed <= value.keys():
            raise BadData(f"{where} has no {min(needed - value.keys())!r}")
        fields = values[:]
        for position, name, reader in steps:
            if name in value:
                fields[position] = reader(value[name], name)
        for position, reader in inline:
            fields[position] = reader(value, where)
        return kind(*fields)

    return read


def _inline_reader(reader: Reader, owner: type, annotation: str, absent: Any) -> Reader:
    """Reads a record whose members are among those of its owner; ``absent`` where none of them is there. Of a family it
    is the record that has the most of the members that are there."""
    first, *others = alternatives(annotation)
    kinds = family_of(meaning(owner, first), owner)
    if not others and len(kinds) == 1:
        return reader
    names = {kind: _inline_names(kind) for kind in kinds}

    def read(value: Any, where: str) -> Any:
        kind = max(kinds, key=lambda kind: (len(names[kind].intersection(value)), -len(names[kind])))
        return from_json(kind, value, where) if names[kind].intersection(value) else absent

    return read


def _inline_names(kind: type) -> set[str]:
    """The names of a record's members, those of its inline records among them."""
    names = set()
    for member in members_of(kind):
        if member.way is not Way.INLINE:
            names.add(member.name)
            continue
        for inner in family_of(meaning(kind, alternatives(member.type)[0]), kind):
            names |= _inline_names(inner)
    return names


def _reader_of(owner: type, annotation: str, limit: int | None = None) -> Reader | None:
    """Reads values of the type that an annotation in ``owner`` names; None where they cannot be read back. ``limit``:
    most items of an array."""
    kinds = alternatives(annotation)
    others = [kind for kind in kinds if kind != "None"]
    if len(others) > 1:
        read: Reader | None = _union_reader([meaning(owner, text) for text in others])
    else:
        read = _single_reader(owner, others[0], limit)
    return optional(read) if len(others) < len(kinds) and read else read


def _single_reader(owner: type, text: str, limit: int | None) -> Reader | None:
    if text in _SIMPLE:
        return _SIMPLE[text]
    name, _, inner = text.partition("[")
    if name in ("tuple", "list", "Sequence"):
        item = _reader_of(owner, arguments_of(inner[:-1])[0])
        return array(item, limit or MAX_ITEMS) if item else lambda *_: ()
    if name in ("Mapping", "dict"):
        item = _reader_of(owner, arguments_of(inner[:-1])[1])
        return _mapping_reader(item) if item else None
    kind = meaning(owner, text)
    if isinstance(kind, str):
        return _reader_of(owner, kind)
    if hasattr(kind, "json_text"):
        return lambda value, where: kind.of_json_text(text_of(value, where))
    return _enum_reader(kind) if issubclass(kind, Enum) else _record_reader(kind)


def _union_reader(kinds: list[type]) -> Reader:
    """Reads a record of the first type that the object fits, with the values of that type's properties."""
    properties = {kind: [member for member in members_of(kind) if not member.is_field] for kind in kinds}

    def read(value: Any, where: str) -> Any:
        for kind in kinds:
            try:
                record: Any = from_json(kind, value, where)
            except BadData:
                continue
            if all(plain(getattr(record, member.attribute)) == value.get(member.name) for member in properties[kind]):
                return record
        raise refusal(value, where, "one of several objects")

    return read


def _mapping_reader(reader: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise refusal(value, where, "an object")
        return {text_of(name, where): reader(item, name) for name, item in value.items()}

    return read


def optional(reader: Reader) -> Reader:
    """Read as ``reader`` does, or null."""
    return lambda value, where: None if value is None else reader(value, where)


def array(reader: Reader, limit: int = MAX_ITEMS) -> Reader:
    """Read an array of at most ``limit`` such values; a tuple is one that was read before."""

    def read(value: Any, where: str) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        if not isinstance(value, list) or len(value) > limit:
            raise refusal(value, where, f"an array of at most {limit} items")
        if not value:
            return ()
        if reader is number and set(map(type, value)) == {int} and -_WORD <= min(value) <= max(value) <= _WORD:
            return tuple(value)  # sizes of tensors: most values of a report with many collectives
        return tuple([reader(item, where) for item in value])

    return read


def _enum_reader(kind: Any) -> Reader:
    def read(value: Any, where: str) -> Any:
        try:
            return kind(value)
        except (ValueError, TypeError):
            return LaterWord(text_of(value, where))

    return read


def text_of(value: Any, where: str) -> str:
    """A string of at most a megabyte."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise refusal(value, where, "text")
    return value


def flag(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise refusal(value, where, "true or false")
    return value


def number(value: Any, where: str) -> int:
    """A whole number of at most 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -_WORD <= value <= _WORD:
        raise refusal(value, where, "a whole number")
    return value


def count(value: Any, where: str) -> int:
    """A whole number that is not negative."""
    checked = number(value, where)
    if checked < 0:
        raise refusal(value, where, "a number from 0 on")
    return checked


def amount(value: Any, where: str) -> float:
    """A number, with a fraction or without, from 0 to 1e18."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise refusal(value, where, "a quantity")
    return float(value)


def real(value: Any, where: str) -> float:
    """A number, or a text for one that JSON has not."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number or value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise refusal(value, where, "a number")


def _hexadecimal(value: Any, where: str) -> int:
    if not isinstance(value, str) or not re.fullmatch("0x[0-9a-f]{1,16}", value):
        raise refusal(value, where, "a number in hexadecimal")
    return integer(value, 16)


_SIMPLE: dict[str, Reader] = {
    "str": text_of,
    "bool": flag,
    "int": number,
    "Count": count,
    "Amount": amount,
    "float": real,
    "Hexadecimal": _hexadecimal,
    "Any": lambda value, _: value,
    "object": lambda value, _: value,
}


def refusal(value: Any, where: str, wanted: str) -> BadData:
    """The error of a value that is not what it must be."""
    kind = {dict: "an object", list: "an array", type(None): "null"}.get(type(value))
    return BadData(f"{where!r} is {kind or repr(value)[:60]}, and must be {wanted}")
