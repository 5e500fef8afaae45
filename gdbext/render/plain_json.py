"""Records as JSON: the names of their fields are the members of objects, in their order.

A field's annotation says how it is written (engine/vocabulary.py): ``Hexadecimal`` as text, ``Sparse[…]`` only where it
does not have its default, ``Explained[…]`` only with --why, ``Internal[…]`` never, ``Inline[…]`` as the members of its
own record. A property made by ``json_member`` is written like a field. A field that would be a keyword of Python has an
underscore behind its name, which JSON has not. Enumerations are written as their values, tuples as arrays, numbers that
JSON lacks as "NaN", "Infinity" and "-Infinity", complex ones as [real, imaginary].
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import isfinite

from gdbext.engine.rank_sets import fold
from gdbext.engine.record import Enum, Record
from gdbext.engine.repetitions import MOST_WHOLE, fold_long
from gdbext.engine.vocabulary import JsonMember, Section

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def plain(value: Any, why: bool = False) -> Any:
    """A value of the model as JSON; with the evidence if ``why``."""
    return _Writer(why).value(value)


def members(sections: tuple[Section, ...], why: bool) -> dict[str, Any]:
    """Each section under its name."""
    writer = _Writer(why)
    return {section.name: writer.value(section) for section in sections}


class Way(Enum):
    """How a member is written."""

    PLAIN = "its value"
    HEXADECIMAL = "its integers in hexadecimal"
    RANK_SET = "a set of ranks as text"
    INLINE = "the members of its value stand in its place"


_WAYS = {"Inline[": Way.INLINE, "Hexadecimal": Way.HEXADECIMAL, "RankSet": Way.RANK_SET}
"""What an annotation has in it → how the field is written."""


class JsonField(Record):
    """A member of a record's JSON object: its name, and the attribute that has its value."""

    name: str
    attribute: str
    way: Way
    annotation: str
    has_default: bool
    default: object
    """A sparse member is left out where it has this value."""
    is_sparse: bool
    needs_why: bool
    """It is left out without --why."""
    is_field: bool = True
    """It is no property made by ``json_member``."""

    @classmethod
    def of(cls, attribute: str, annotation: str, has_default: bool, default: object) -> JsonField:
        """The member of a field, or of a property."""
        way = next((way for word, way in _WAYS.items() if word in annotation), Way.PLAIN)
        sparse, explained = "Sparse[" in annotation, "Explained[" in annotation
        return cls(attribute.rstrip("_"), attribute, way, annotation, has_default, default, sparse, explained)

    @classmethod
    def of_property(cls, name: str, made: JsonMember[Any]) -> JsonField:
        """The member of a property."""
        return cls.of(name, made.function.__annotations__["return"], False, None)._replace(is_field=False)


@cache
def members_of(kind: type) -> tuple[JsonField, ...]:
    """The members of a record's JSON object, in their order; none for what is no record.

    A dataclass is asked itself (as dataclasses.fields does): the module takes a tenth of a look to import.
    """
    classes = [vars(base) for base in reversed(kind.__mro__)]
    annotations = {name: text for each in classes for name, text in each.get("__annotations__", {}).items()}
    defaults = getattr(kind, "_field_defaults", vars(kind))
    found = [
        JsonField.of(name, annotations[name], name in defaults, defaults.get(name))
        for name in getattr(kind, "__dataclass_fields__", ()) or getattr(kind, "_fields", ())
        if not annotations[name].startswith(("ClassVar", "Internal["))
    ]
    for name, value in [item for each in classes for item in each.items()]:
        if isinstance(value, JsonMember):
            place = [each.name for each in found].index(value.after) + 1 if value.after else 0
            found.insert(place, JsonField.of_property(name, value))
    return tuple(found)


_AS_IT_IS = {str, int, bool, type(None)}
"""Types of values that JSON has, too: most values are of these."""


def _members(record: Any) -> tuple[JsonField, ...]:
    kind: Any = type(record)
    return members_of(kind)


class _Writer:
    """Writes one document. What several records have in common, ``Inline``, is written once and copied."""

    def __init__(self, why: bool) -> None:
        self._why = why
        self._inline: dict[int, tuple[Any, dict[str, Any]]] = {}

    def value(self, value: Any) -> Any:
        """The value as JSON."""
        if type(value) in _AS_IT_IS:
            return value
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, float):
            return _number(value)
        if hasattr(value, "json_text"):
            return value.json_text
        if isinstance(value, Section):
            return self._section(value)
        if _members(value):
            return self._record(value)
        if isinstance(value, Mapping):
            return {str(key): self.value(each) for key, each in value.items()}
        if isinstance(value, (tuple, list)):
            return self._array(value)
        return [_number(value.real), _number(value.imag)] if isinstance(value, complex) else value

    def _section(self, section: Section) -> Any:
        if section.only_member:
            return self.value(getattr(section, section.only_member))
        if _members(section):
            return self._record(section)
        return {name: self.value(value) for name, value in vars(section).items() if name[0] != "_"}

    def _record(self, record: Any) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for name, attribute, way, _, _, default, is_sparse, needs_why, _ in _members(record):
            value = getattr(record, attribute)
            if (is_sparse and value == default) or (needs_why and not self._why):
                continue
            if way is Way.INLINE:
                members.update(self._inlined(value))
            elif type(value) in _AS_IT_IS:
                members[name] = f"{value:#x}" if way is Way.HEXADECIMAL and value is not None else value
            elif way is Way.PLAIN:
                members[name] = self.value(value)
            else:
                members[name] = fold(value) if way is Way.RANK_SET else [f"{each:#x}" for each in value]
        return members

    def _inlined(self, value: Any) -> dict[str, Any]:
        if value is None:
            return {}
        known = self._inline.get(id(value))
        if known is None:
            known = self._inline[id(value)] = (value, self._record(value))  # with the value: its id stays its own
        return known[1]

    def _array(self, values: Sequence[Any]) -> list[Any]:
        """Where a block of equal records stands many times in a row, it is there once, and its first object has the
        member "repeats": a stack that overflowed has a hundred thousand frames, and as many objects would make tens of
        megabytes."""
        if len(values) <= MOST_WHOLE or not hasattr(values[0], "fold_key"):
            return [each if type(each) in _AS_IT_IS else self.value(each) for each in values]
        array: list[Any] = []
        for found in fold_long([each.fold_key for each in values]):
            block = [self.value(each) for each in values[found.start : found.start + found.period]]
            if found.times > 1:
                block[0]["repeats"] = {"period": found.period, "times": found.times}
            array += block
        return array


def _number(value: float) -> Any:
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
