"""Records and enumerations behave as what they stand for in the standard library."""

from __future__ import annotations

import copy
import enum
import pickle
from pathlib import Path
from typing import NamedTuple

import pytest

from gdbext.engine.record import Enum, Record

ROOT = Path(__file__).resolve().parents[3]


class Ours(Record):
    """One of ours."""

    number: int
    text: str = ""
    more: tuple[int, ...] = ()

    @property
    def twice(self) -> int:
        return 2 * self.number

    @classmethod
    def of(cls, number: int) -> Ours:
        return cls(number, "of")


class Theirs(NamedTuple):
    """One of theirs."""

    number: int
    text: str = ""
    more: tuple[int, ...] = ()


class Derived(Ours):
    """With no fields of its own."""

    def shout(self) -> str:
        return self.text.upper()


class Empty(Record):
    """Without fields."""


@pytest.mark.parametrize(
    ("values", "named"),
    [((1,), {}), ((1, "a"), {}), ((1, "a", (2,)), {}), ((), {"number": 1}), ((1,), {"more": (3, 4)})],
)
def test_it_is_made_as_a_named_tuple_is(values: tuple, named: dict) -> None:  # type: ignore[type-arg]
    ours, theirs = Ours(*values, **named), Theirs(*values, **named)
    assert tuple(ours) == tuple(theirs)
    assert ours == theirs
    assert hash(ours) == hash(theirs)
    assert (ours.number, ours.text, ours.more) == (theirs.number, theirs.text, theirs.more)
    assert repr(ours).replace("Ours", "Theirs") == repr(theirs)
    assert ours._asdict() == theirs._asdict()
    assert ours._fields == theirs._fields
    assert tuple(ours._replace(text="b")) == tuple(theirs._replace(text="b"))
    assert isinstance(ours._replace(text="b"), Ours)


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"number": 2}), ((1,), {"no": 2})])
def test_a_wrong_call_is_refused_as_there(values: tuple, named: dict) -> None:  # type: ignore[type-arg]
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_it_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Ours(1).number = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Ours(1).other = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="other"):
        Ours(1)._replace(other=2)  # type: ignore[call-arg]


def test_methods_and_derived_classes() -> None:
    assert (Ours.of(3).twice, Ours.of(3).text) == (6, "of")
    assert Derived.of(3) == (3, "of", ())  # type: ignore[comparison-overlap]
    assert Derived(1, "a").shout() == "A"
    assert (Derived(1)._fields, type(Derived(1)._replace(text="b"))) == (Ours._fields, Derived)
    assert (Empty(), Empty()._fields, repr(Empty())) == ((), (), "Empty()")


@pytest.mark.parametrize("record", [Ours(1, "a", (2,)), Derived(1)])
def test_copies(record: Ours) -> None:
    for each in (copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert each == record
        assert type(each) is type(record)


class OurWords(Enum):
    """One of ours."""

    FIRST = "first"
    """A word."""
    SECOND = "second"
    ALSO_FIRST = "first"

    @property
    def is_first(self) -> bool:
        return self is OurWords.FIRST


class TheirWords(enum.Enum):
    """One of theirs."""

    FIRST = "first"
    SECOND = "second"
    ALSO_FIRST = "first"  # noqa: PIE796


class OurPairs(Enum):
    """Members that are made of more than their value."""

    traits: int
    ONE = "one", 1
    TWO = "two", 2

    def __new__(cls, value: str, traits: int) -> OurPairs:
        member = object.__new__(cls)
        member._value_ = value
        member.traits = traits
        return member


def test_an_enumeration_has_what_that_of_the_standard_library_has() -> None:
    for ours, theirs in zip(OurWords, TheirWords):
        assert (ours.name, ours.value) == (theirs.name, theirs.value)
        assert str(ours).partition(".")[2] == str(theirs).partition(".")[2]
        assert f"{ours:>30}" == str(ours).rjust(30)
        assert ours is OurWords(theirs.value)
        assert ours is OurWords[theirs.name]
        assert ours in OurWords
        assert theirs not in OurWords
    assert list(OurWords.__members__) == list(TheirWords.__members__)
    assert [each.name for each in reversed(OurWords)] == [each.name for each in reversed(TheirWords)]
    assert OurWords.ALSO_FIRST is OurWords.FIRST
    assert OurWords.FIRST.is_first
    assert len(OurWords) == len(TheirWords)
    assert {OurWords.FIRST: 1}[OurWords("first")] == 1
    assert [(each.value, each.traits) for each in OurPairs] == [("one", 1), ("two", 2)]
    assert OurPairs("two") is OurPairs.TWO


@pytest.mark.parametrize("value", ["third", None, []])
def test_a_value_that_there_is_not_is_told_as_there(value: object) -> None:
    with pytest.raises(ValueError, match="is not a valid TheirWords") as theirs:
        TheirWords(value)
    with pytest.raises(ValueError, match="is not a valid OurWords") as ours:
        OurWords(value)
    assert str(ours.value) == str(theirs.value).replace("Their", "Our")


def test_a_member_is_one_wherever_it_goes() -> None:
    assert copy.copy(OurWords.FIRST) is OurWords.FIRST
    assert copy.deepcopy([OurWords.FIRST]) == [OurWords.FIRST]
    assert pickle.loads(pickle.dumps(OurWords.SECOND)) is OurWords.SECOND
