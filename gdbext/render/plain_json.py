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
from operator import attrgetter

from gdbext.engine.rank_sets import fold
from gdbext.engine.record import Enum, Record
from gdbext.engine.repetitions import MOST_WHOLE, fold_long
from gdbext.engine.vocabulary import JsonMember, Section

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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


class _Form(Enum):
    """What a type of values is written as."""

    WORD = "the value of an enumeration"
    NUMBER = "a number"
    TEXT = "a text that stands for it"
    ONE_MEMBER = "the member that stands for a section"
    RECORD = "an object"
    ATTRIBUTES = "an object of a section's attributes"
    MAPPING = "an object with its keys"
    ARRAY = "an array"
    AS_IT_IS = "as it is"


@cache
def _form(kind: Any) -> _Form:
    if issubclass(kind, Section) and kind.only_member:
        return _Form.ONE_MEMBER
    if hasattr(kind, "json_text"):
        return _Form.TEXT
    if members_of(kind):
        return _Form.RECORD
    forms: dict[Any, _Form] = {
        Enum: _Form.WORD,
        (float, complex): _Form.NUMBER,
        Section: _Form.ATTRIBUTES,
        Mapping: _Form.MAPPING,
        (tuple, list): _Form.ARRAY,
    }
    return next((form for kinds, form in forms.items() if issubclass(kind, kinds)), _Form.AS_IT_IS)


@cache
def _plan(kind: Any) -> tuple[list[tuple[str, Way, JsonField | None]], Callable[[Any], tuple[Any, ...]]]:
    """How a record is written: name and way of each member, the member itself where it may be left out, and what gives
    their values."""
    members = members_of(kind)
    names = [member.attribute for member in members]
    getter = attrgetter(*names) if len(names) > 1 else lambda record: (getattr(record, names[0]),)
    return [(each.name, each.way, each if each.is_sparse or each.needs_why else None) for each in members], getter


class _Writer:
    """Writes one document. What several records have in common, ``Inline``, is written once and copied."""

    def __init__(self, why: bool) -> None:
        self._why = why
        self._inline: dict[int, tuple[Any, dict[str, Any]]] = {}

    def value(self, value: Any) -> Any:
        """The value as JSON."""
        kind: Any = type(value)
        if kind in _AS_IT_IS:
            return value
        form = _form(kind)
        if form is _Form.RECORD:
            return self._record(value)
        if form is _Form.ARRAY:
            return self._array(value)
        if form is _Form.WORD:
            return value.value
        if form is _Form.MAPPING:
            return {str(key): self.value(each) for key, each in value.items()}
        if form is _Form.ATTRIBUTES:
            return {name: self.value(each) for name, each in vars(value).items() if name[0] != "_"}
        if form is _Form.ONE_MEMBER:
            return self.value(getattr(value, value.only_member))
        if form is _Form.NUMBER:
            return [_number(value.real), _number(value.imag)] if isinstance(value, complex) else _number(value)
        return value.json_text if form is _Form.TEXT else value

    def _record(self, record: Any) -> dict[str, Any]:
        members: dict[str, Any] = {}
        kind: Any = type(record)
        plan, getter = _plan(kind)
        plain_way = Way.PLAIN
        for (name, way, condition), value in zip(plan, getter(record)):
            if condition is not None and not self._has(condition, value):
                continue
            if way is plain_way:
                members[name] = value if type(value) in _AS_IT_IS else self.value(value)
            elif way is Way.INLINE:
                members.update(self._inlined(value))
            elif way is Way.RANK_SET:
                members[name] = fold(value)
            else:
                members[name] = _hexadecimal(value)
        return members

    def _has(self, member: JsonField, value: Any) -> bool:
        """The member is written although it is sparse or needs --why."""
        return not (member.is_sparse and value == member.default) and (self._why or not member.needs_why)

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


def _hexadecimal(value: Any) -> Any:
    """An integer, or each of several, as text; None as it is."""
    if value is None:
        return None
    return f"{value:#x}" if isinstance(value, int) else [f"{each:#x}" for each in value]


def _number(value: float) -> Any:
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
