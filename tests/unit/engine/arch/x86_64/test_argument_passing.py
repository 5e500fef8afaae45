"""Where arguments are passed by the System V ABI."""

from __future__ import annotations

import pytest

from gdbext.engine.arch import Passing, Slot
from gdbext.engine.arch.x86_64.conventions import place

WORD, TWO, FLOAT = Passing.WORD, Passing.TWO_WORDS, Passing.FLOAT
MIXED, MEMORY = Passing.FLOAT_AND_WORD, Passing.MEMORY
FLOATS = tuple(Slot(float_register=number) for number in range(8))


def registers(*numbers: int) -> tuple[Slot, ...]:
    return tuple(Slot(number) for number in numbers)


def stack(*offsets: int) -> tuple[Slot, ...]:
    return tuple(Slot(offset=offset) for offset in offsets)


@pytest.mark.parametrize(
    ("passed", "places"),
    [
        ([WORD] * 8, [*(registers(n) for n in range(6)), stack(0), stack(8)]),
        # the seventh argument still gets the register that the structure did not fit into
        ([WORD] * 5 + [TWO, WORD], [*(registers(n) for n in range(5)), stack(0, 8), registers(5)]),
        ([WORD, FLOAT, WORD], [registers(0), FLOATS[:1], registers(1)]),
        ([FLOAT] * 9, [*(FLOATS[n : n + 1] for n in range(8)), stack(0)]),
        ([MIXED, WORD], [(*FLOATS[:1], Slot(0)), registers(1)]),
        ([Passing.WORD_AND_FLOAT, WORD], [(Slot(0), *FLOATS[:1]), registers(1)]),
        ([WORD, MEMORY, WORD], [registers(0), stack(0, 8, 16), registers(1)]),
    ],
    ids=["words", "structure", "float", "floats", "mixed", "mixed reversed", "copied"],
)
def test_where_arguments_are(passed: list[Passing], places: list[tuple[Slot, ...]]) -> None:
    assert place(passed) == places
