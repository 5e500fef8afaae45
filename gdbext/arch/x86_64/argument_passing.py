"""Where arguments are passed on x86-64: System V ABI, AMD64 Architecture Processor Supplement 1.0, section 3.2.3."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.arch.argument_passing import Passing, Slot

_INTEGER_REGISTERS = 6
_FLOAT_REGISTERS = 8
_WORD = 8
_NEEDS = {
    Passing.WORD: (1, 0),
    Passing.TWO_WORDS: (2, 0),
    Passing.FLOAT: (0, 1),
    Passing.FLOAT_AND_WORD: (1, 1),
    Passing.WORD_AND_FLOAT: (1, 1),
}
"""Integer and floating-point registers that an argument takes; all of them, or none."""
_WORDS = {
    Passing.WORD: 1, Passing.TWO_WORDS: 2, Passing.FLOAT: 1, Passing.FLOAT_AND_WORD: 2, Passing.WORD_AND_FLOAT: 2,
    Passing.MEMORY: 3,
}  # fmt: skip
"""Words on the stack of one that does not fit into registers."""


def place(arguments: Sequence[Passing]) -> list[tuple[Slot, ...]]:
    """The words of each argument, in order."""
    integers = floats = stacked = 0
    found: list[tuple[Slot, ...]] = []
    for passing in arguments:
        needs = _NEEDS.get(passing)
        if needs is None or integers + needs[0] > _INTEGER_REGISTERS or floats + needs[1] > _FLOAT_REGISTERS:
            count = _WORDS[passing]
            found.append(tuple(Slot(offset=stacked + _WORD * each) for each in range(count)))
            stacked += _WORD * count
            continue
        in_floats = tuple(Slot(float_register=floats + each) for each in range(needs[1]))
        in_integers = tuple(Slot(integers + each) for each in range(needs[0]))
        float_last = passing is Passing.WORD_AND_FLOAT
        found.append(in_integers + in_floats if float_last else in_floats + in_integers)
        integers, floats = integers + needs[0], floats + needs[1]
    return found
