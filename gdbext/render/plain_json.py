"""Writes records as JSON: their fields become the members of objects, in order.

A field's annotation decides how it is written (engine/vocabulary.py): ``Hexadecimal`` as text, ``Sparse[…]`` only if it
differs from its default, ``Explained[…]`` only with --why, ``Internal[…]`` never, ``Inline[…]`` as the members of its
value, whose type may be the base class of several records (WaitDetail). A property made by ``json_member`` is written
like a field. A trailing underscore of a field's name, which avoids a keyword of Python, is dropped. Enumerations are
written as their values, tuples as arrays, numbers that JSON lacks as "NaN", "Infinity" and "-Infinity", complex ones as
[real, imaginary].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from math import inf, isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.rank_sets import fold
from gdbext.engine.repetitions import MOST_WHOLE, fold_long
from gdbext.engine.vocabulary import JsonMember, Section

if TYPE_CHECKING:
    from typing import Any

    Write = Callable[[Any], Any]  # a value → plain JSON values


def plain(value: Any, why: bool = False) -> Any:
    """A record or value as plain JSON values; ``why``: with Explained fields."""
    return _Writer(why).value(value)


def members(sections: tuple[Section, ...], why: bool) -> dict[str, Any]:
    """Name of a section → the section as plain JSON values."""
    writer = _Writer(why)
    return {section.name: writer.value(section) for section in sections}


class Encoding(Enum):
    """How a member is written."""

    PLAIN = "its value"
    HEXADECIMAL = "its integers in hexadecimal"
    RANK_SET = "a set of ranks as text"
    INLINE = "the members of its value, among those of the record"


class JsonField(NamedTuple):
    """A member of a record's JSON object: its name, and the attribute that has its value."""

    name: str
    attribute: str
    encoding: Encoding
    type: str  # the annotation without Sparse, Explained and Inline
    has_default: bool
    default: object  # a sparse member is left out if it has this value
    is_sparse: bool
    needs_why: bool  # it is left out without --why
    is_field: bool = True  # False for a property made by ``json_member``

    @classmethod
    def of(
        cls, attribute: str, annotation: str, has_default: bool = False, default: object = None, is_field: bool = True
    ) -> JsonField:
        """The member for a field or property with that annotation."""
        encodings = {"Inline[": Encoding.INLINE, "Hexadecimal": Encoding.HEXADECIMAL, "RankSet": Encoding.RANK_SET}
        encoding = next((encoding for word, encoding in encodings.items() if word in annotation), Encoding.PLAIN)
        sparse, explained = "Sparse[" in annotation, "Explained[" in annotation
        bare = annotation
        while bare.startswith(("Sparse[", "Explained[", "Inline[")):
            bare = bare.partition("[")[2][:-1]
        return cls(attribute.rstrip("_"), attribute, encoding, bare, has_default, default, sparse, explained, is_field)


def annotation_texts(kind: type) -> dict[str, str]:
    """Field of a class → its annotation as in the source, which typing.NamedTuple keeps in a ForwardRef."""
    annotations = [item for base in reversed(kind.__mro__) for item in getattr(base, "__annotations__", {}).items()]
    return {name: getattr(text, "__forward_arg__", text) for name, text in annotations}


@cache
def members_of(kind: type) -> tuple[JsonField, ...]:
    """The members of a record's JSON object, in order; () if ``kind`` is no record. Without dataclasses.fields, whose
    module takes a tenth of an inspection to import."""
    annotations = annotation_texts(kind)
    defaults = getattr(kind, "_field_defaults", vars(kind))
    members = [
        JsonField.of(name, annotations[name], name in defaults, defaults.get(name))
        for name in getattr(kind, "__dataclass_fields__", ()) or getattr(kind, "_fields", ())
        if not annotations[name].startswith(("ClassVar", "Internal["))
    ]
    for name, value in [item for base in reversed(kind.__mro__) for item in vars(base).items()]:
        if isinstance(value, JsonMember):
            index = [member.name for member in members].index(value.after) + 1 if value.after else 0
            members.insert(index, JsonField.of(name, value.function.__annotations__["return"], is_field=False))
    return tuple(members)


def possible_records(kind: type, without: type | None = None) -> list[type]:
    """The record types of values annotated with ``kind``: itself or its subclasses, except ``without``."""
    if members_of(kind):
        return [kind] if kind is not without else []
    bases: list[type] = kind.__subclasses__()
    return [record for base in bases for record in possible_records(base, without)]


_JSON_TYPES = {str, int, bool, type(None)}  # types that JSON has, too; most values have them


class _Writer:
    """Writes one document. An Inline value that several records share is converted only once."""

    def __init__(self, why: bool) -> None:
        self._why = why
        self._writers: dict[type, Write] = {}
        self._inline: dict[int, tuple[Any, dict[str, Any]]] = {}
        """id() of an Inline value → (the value, so that no other object gets its id; its members)."""

    def value(self, value: Any) -> Any:
        """Any value as plain JSON values."""
        kind = type(value)
        return value if kind in _JSON_TYPES else self._writer(kind)(value)

    def _writer(self, kind: type) -> Write:
        write = self._writers.get(kind)
        if not write:
            write = self._writers[kind] = self._new_writer(kind)
        return write

    def _new_writer(self, kind: Any) -> Write:
        """The function that writes values of that type."""
        if issubclass(kind, Section) and kind.only_member:
            return lambda section: self.value(getattr(section, section.only_member))
        if hasattr(kind, "json_text"):
            return attrgetter("json_text")
        if members_of(kind):
            return self._record_writer(kind)
        if issubclass(kind, Enum):
            return attrgetter("value")
        if issubclass(kind, float):
            return _number
        if issubclass(kind, complex):
            return lambda value: [_number(value.real), _number(value.imag)]
        if issubclass(kind, Section):
            return lambda section: self.value({name: value for name, value in vars(section).items() if name[0] != "_"})
        if issubclass(kind, Mapping):
            return lambda mapping: {str(key): self.value(value) for key, value in mapping.items()}
        return self._array if issubclass(kind, (tuple, list)) else lambda value: value

    def _record_writer(self, kind: type) -> Write:
        """The function that writes records of that type; what depends on the type alone is computed here."""
        members = [member for member in members_of(kind) if self._why or not member.needs_why]
        plain = self.value
        writers: dict[Encoding, Any] = {
            Encoding.PLAIN: plain,
            Encoding.HEXADECIMAL: _hexadecimal,
            Encoding.RANK_SET: fold,
        }
        steps = [(member.name, writers.get(member.encoding), member.is_sparse, member.default) for member in members]
        names = [member.attribute for member in members]
        values = attrgetter(*names) if len(names) > 1 else lambda record: (getattr(record, names[0]),)

        def write(record: Any) -> dict[str, Any]:
            """One record as a dict; the steps were computed from the type's fields."""
            written: dict[str, Any] = {}
            for (name, write, is_sparse, default), value in zip(steps, values(record)):
                if is_sparse and value == default:
                    continue
                if write is plain:
                    written[name] = value if type(value) in _JSON_TYPES else plain(value)
                elif write is not None:
                    written[name] = write(value)
                elif value:  # inline; else none of a family, or None
                    if id(value) not in self._inline:
                        self._inline[id(value)] = (value, self.value(value))
                    written.update(self._inline[id(value)][1])
            return written

        return write

    def _array(self, values: Sequence[Any]) -> list[Any]:
        """The items as an array. In a very long one, a block of equal records that repeats is written once, and its
        first object gets the member "repeats": the hundred thousand frames of an overflowed stack would take tens of
        megabytes."""
        if len(values) <= MOST_WHOLE or not hasattr(values[0], "fold_key"):
            kinds = set(map(type, values))
            if len(kinds) == 1 and not kinds & _JSON_TYPES:
                return list(map(self._writer(kinds.pop()), values))
            return [self.value(value) for value in values]
        array: list[Any] = []
        for repetition in fold_long([value.fold_key for value in values]):
            end = repetition.start + repetition.period
            block = [self.value(value) for value in values[repetition.start : end]]
            if repetition.times > 1:
                block[0]["repeats"] = {"period": repetition.period, "times": repetition.times}
            array += block
        return array


def _hexadecimal(value: Any) -> Any:
    """An integer, or each of several, as text in hexadecimal; None as it is."""
    if value is None:
        return None
    return f"{value:#x}" if isinstance(value, int) else [f"{item:#x}" for item in value]


def _number(value: float) -> Any:
    """A finite number as it is, any other as text."""
    return value if isfinite(value) else {inf: "Infinity", -inf: "-Infinity"}.get(value, "NaN")
