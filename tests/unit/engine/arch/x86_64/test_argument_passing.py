"""Where arguments are passed by the System V ABI."""

from __future__ import annotations

from gdbext.engine.arch import Passing, Slot
from gdbext.engine.arch.x86_64.conventions import place

WORD, TWO, FLOAT, MIXED, MEMORY = (
    Passing.WORD,
    Passing.TWO_WORDS,
    Passing.FLOAT,
    Passing.FLOAT_AND_WORD,
    Passing.MEMORY,
)


def registers(*numbers: int) -> tuple[Slot, ...]:
    return tuple(Slot(number) for number in numbers)


def stack(*offsets: int) -> tuple[Slot, ...]:
    return tuple(Slot(offset=offset) for offset in offsets)


def test_words_fill_six_registers_then_the_stack() -> None:
    assert place([WORD] * 8) == [*(registers(n) for n in range(6)), stack(0), stack(8)]


def test_a_structure_goes_whole_or_not_at_all() -> None:
    """The seventh argument still gets the register that the structure did not fit into."""
    assert place([WORD] * 5 + [TWO, WORD]) == [*(registers(n) for n in range(5)), stack(0, 8), registers(5)]


def test_floats_take_no_integer_register() -> None:
    assert place([WORD, FLOAT, WORD]) == [registers(0), (Slot(float_register=0),), registers(1)]
    assert place([FLOAT] * 9)[-1] == stack(0)


def test_an_optional_double_takes_one_of_each() -> None:
    assert place([MIXED, WORD]) == [(Slot(float_register=0), Slot(0)), registers(1)]
    assert place([Passing.WORD_AND_FLOAT, WORD]) == [(Slot(0), Slot(float_register=0)), registers(1)]


def test_large_structures_are_copied_to_the_stack() -> None:
    assert place([WORD, MEMORY, WORD]) == [registers(0), stack(0, 8, 16), registers(1)]
