"""Reads JSON objects back as the records that they were written from (plain_json.py).

Documents are not trusted: a member of another type, a text or list that is too long, or a number beyond 64 bits raises
BadData, which says where. Unknown members are ignored, since a newer version may add some; a missing member has its
default. A word that an enumeration lacks becomes a LaterWord. Internal fields have their defaults; a record that has an
internal field without a default cannot be read back: it becomes null or empty.
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
from gdbext.render.annotation_names import alternatives, arguments_of, resolve_name
from gdbext.render.plain_json import Encoding, annotation_texts, members_of, plain, possible_records

Reader = Callable[[Any, str], Any]  # (value, its name in the document, for errors) → the value as read
RecordType = TypeVar("RecordType")

MAX_ITEMS = 1 << 20
_WORD = (1 << 64) - 1


class LaterWord(str):
    """A word of a later version, in place of a member of an enumeration. It equals no member."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The word, since a member of an enumeration has it there."""
        return str(self)


def from_json(kind: type[RecordType], value: Any, where: str) -> RecordType:
    """Read the object ``value`` as a record of type ``kind``; ``where`` names it in errors. Raises BadData."""
    read: Any = _record_reader  # mypy: the cache hides its type
    record: RecordType = read(kind)(value, where)
    return record


def section_from_json(kind: type[Section], value: Any, where: str) -> Section:
    """Read a member of a report as a section, like from_json(). Raises BadData."""
    if not kind.only_member:
        return from_json(kind, value, where)
    reader: Any = _reader_of(kind, annotation_texts(kind)[kind.only_member])
    make: Any = kind
    section: Section = make(reader(value, where))
    return section


@cache
def _record_reader(kind: Any) -> Reader | None:
    """The reader of records of type ``kind``; None if they cannot be read back."""
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
        elif member.encoding is Encoding.INLINE:
            inline.append((position, _inline_reader(reader, kind, member.type, defaults.get(name))))
        else:
            steps.append((position, member.name, reader))
            needed |= set() if member.has_default else {member.name}

    def read(value: Any, where: str) -> Any:
        """Read one object; the steps were computed from the type's fields."""
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
    """The reader of an inline record, whose members are among those of its ``owner``; it returns ``absent`` if none
    exists. If several types of records are possible, the one with most of the existing members is read."""
    first, *others = alternatives(annotation)
    kinds = possible_records(resolve_name(owner, first), owner)
    if not others and len(kinds) == 1:
        return reader
    names = {kind: _inline_names(kind) for kind in kinds}

    def read(value: Any, where: str) -> Any:
        kind = max(kinds, key=lambda kind: (len(names[kind].intersection(value)), -len(names[kind])))
        return from_json(kind, value, where) if names[kind].intersection(value) else absent

    return read


def _inline_names(kind: type) -> set[str]:
    """The names of a record's members, including those of its inline records."""
    names = set()
    for member in members_of(kind):
        if member.encoding is not Encoding.INLINE:
            names.add(member.name)
            continue
        for inner in possible_records(resolve_name(kind, alternatives(member.type)[0]), kind):
            names |= _inline_names(inner)
    return names


def _reader_of(owner: type, annotation: str, limit: int | None = None) -> Reader | None:
    """The reader for an annotation of ``owner``; None if there is none. ``limit``: most items of an array."""
    kinds = alternatives(annotation)
    others = [kind for kind in kinds if kind != "None"]
    if len(others) > 1:
        read: Reader | None = _union_reader([resolve_name(owner, text) for text in others])
    else:
        read = _single_reader(owner, others[0], limit)
    return optional(read) if len(others) < len(kinds) and read else read


def _single_reader(owner: type, text: str, limit: int | None) -> Reader | None:
    """_reader_of() for an annotation that is no union."""
    if text in _SIMPLE:
        return _SIMPLE[text]
    name, _, inner = text.partition("[")
    if name in ("tuple", "list", "Sequence"):
        item = _reader_of(owner, arguments_of(inner[:-1])[0])
        return array(item, limit or MAX_ITEMS) if item else lambda *_: ()
    if name in ("Mapping", "dict"):
        item = _reader_of(owner, arguments_of(inner[:-1])[1])
        return _mapping_reader(item) if item else None
    kind = resolve_name(owner, text)
    if isinstance(kind, str):
        return _reader_of(owner, kind)
    if hasattr(kind, "json_text"):
        return lambda value, where: kind.of_json_text(text_of(value, where))
    return _enum_reader(kind) if issubclass(kind, Enum) else _record_reader(kind)


def _union_reader(kinds: list[type]) -> Reader:
    """The reader of a record of the first type that the object matches, including the values of its properties."""
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
    """The reader of an object with any names, as a dict."""

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise refusal(value, where, "an object")
        return {text_of(name, where): reader(item, name) for name, item in value.items()}

    return read


def optional(reader: Reader) -> Reader:
    """The reader of null, or of what ``reader`` reads."""
    return lambda value, where: None if value is None else reader(value, where)


def array(reader: Reader, limit: int = MAX_ITEMS) -> Reader:
    """The reader of an array of at most ``limit`` values as a tuple; a tuple, which was read before, stays."""

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
    """The reader of members of the enumeration ``kind``, or LaterWords."""

    def read(value: Any, where: str) -> Any:
        try:
            return kind(value)
        except (ValueError, TypeError):
            return LaterWord(text_of(value, where))

    return read


def _checked(is_valid: Callable[[Any], bool], wanted: str) -> Reader:
    """The reader of values that are valid; any other raises BadData: it must be ``wanted``."""

    def read(value: Any, where: str) -> Any:
        if not is_valid(value):
            raise refusal(value, where, wanted)
        return value

    return read


def _is_number(value: Any, kinds: Any = int) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


text_of = _checked(lambda value: isinstance(value, str) and len(value) <= 1 << 20, "text")
flag = _checked(lambda value: isinstance(value, bool), "true or false")
number = _checked(lambda value: _is_number(value) and -_WORD <= value <= _WORD, "a whole number")
"""A whole number of at most 64 bits."""
_amount = _checked(lambda value: _is_number(value, (int, float)) and 0 <= value <= 1e18, "a quantity")
_hexadecimal_text = _checked(
    lambda value: isinstance(value, str) and re.fullmatch("0x[0-9a-f]{1,16}", value) is not None,
    "a number in hexadecimal",
)


def count(value: Any, where: str) -> int:
    """A whole number that is not negative."""
    checked: int = number(value, where)
    if checked < 0:
        raise refusal(value, where, "a number from 0 on")
    return checked


def amount(value: Any, where: str) -> float:
    """A number, with a fraction or without, from 0 to 1e18 (in seconds 30 thousand million years)."""
    return float(_amount(value, where))


def real(value: Any, where: str) -> float:
    """A number, also one that JSON lacks, as text: "NaN", "Infinity", "-Infinity"."""
    if _is_number(value, (int, float)) or value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise refusal(value, where, "a number")


_SIMPLE: dict[str, Reader] = {
    "str": text_of,
    "bool": flag,
    "int": number,
    "Count": count,
    "Amount": amount,
    "float": real,
    "Hexadecimal": lambda value, where: integer(_hexadecimal_text(value, where), 16),
    "Any": lambda value, _: value,
    "object": lambda value, _: value,
}


def refusal(value: Any, where: str, wanted: str) -> BadData:
    """The error for a value that must be ``wanted``, such as "an object", and is not."""
    kind = {dict: "an object", list: "an array", type(None): "null"}.get(type(value))
    return BadData(f"{where!r} is {kind or repr(value)[:60]}, and must be {wanted}")
