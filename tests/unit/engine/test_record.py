"""Records and enumerations behave as what they stand for in the standard library."""

from __future__ import annotations

import copy
import pickle

import pytest

from gdbext.engine.record import Enum, Record


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


class Derived(Ours):
    """With no fields of its own."""


def test_it_is_a_named_tuple() -> None:
    record = Ours(1, more=(2,))
    assert record == (1, "", (2,))  # type: ignore[comparison-overlap]
    assert repr(record) == "Ours(number=1, text='', more=(2,))"
    assert record._asdict() == {"number": 1, "text": "", "more": (2,)}
    assert record._replace(text="b") == Ours(1, "b", (2,))
    assert (Ours.of(3).twice, Derived.of(3).text, type(Derived(1)._replace(text="b"))) == (6, "of", Derived)
    for same in (copy.deepcopy(Derived(1)), pickle.loads(pickle.dumps(Derived(1)))):
        assert (same, type(same)) == (Derived(1), Derived)


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"number": 2}), ((1,), {"no": 2})])
def test_a_wrong_call_is_refused(values: tuple, named: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(TypeError):
        Ours(*values, **named)


def test_it_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Ours(1).number = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Ours(1).other = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="other"):
        Ours(1)._replace(other=2)  # type: ignore[call-arg]


class Words(Enum):
    FIRST = "first"
    SECOND = "second"
    ALSO_FIRST = "first"


class Pairs(Enum):
    """Members that are made of more than their value."""

    traits: int
    ONE = "one", 1
    TWO = "two", 2

    def __new__(cls, value: str, traits: int) -> Pairs:
        member = object.__new__(cls)
        member._value_ = value
        member.traits = traits
        return member


def test_an_enumeration() -> None:
    assert [(each.name, each.value) for each in Words] == [("FIRST", "first"), ("SECOND", "second")]
    assert [*reversed(Words)] == [Words.SECOND, Words.FIRST]
    assert Words("first") is Words["FIRST"] is Words.ALSO_FIRST is Words.FIRST
    assert (str(Words.FIRST), f"{Words.FIRST:>12}", len(Words)) == ("Words.FIRST", " Words.FIRST", 2)
    assert list(Words.__members__) == ["FIRST", "SECOND", "ALSO_FIRST"]
    assert Words.FIRST in Words
    assert Pairs.ONE not in Words
    assert (Pairs("two"), Pairs.TWO.traits) == (Pairs.TWO, 2)
    assert copy.deepcopy([Words.FIRST])[0] is pickle.loads(pickle.dumps(Words.FIRST)) is Words.FIRST
    for value in ("third", None, []):
        with pytest.raises(ValueError, match="is not a valid Words"):
            Words(value)
