"""Where the arguments of a call are passed: what an architecture's calling convention says of each, as data."""

from __future__ import annotations

from enum import Enum

from gdbext.model.record import Record


class Passing(Enum):
    """How a C++ argument travels, by its type alone."""

    WORD = "word"
    """An integer, a pointer, a reference, a small structure: one register for integers."""
    TWO_WORDS = "two words"
    """A structure of 9 to 16 bytes without floating-point members."""
    FLOAT = "float"
    FLOAT_AND_WORD = "float and word"
    """A structure of a double and something else."""
    WORD_AND_FLOAT = "word and float"
    """The same, the other way round."""
    MEMORY = "memory"
    """A structure of more than 16 bytes: three words, copied to the stack."""


class Slot(Record):
    """One word of an argument.

    ``register`` is the number of an argument register, ``float_register`` that of one for floating-point numbers. A
    word on the stack has neither: it is at ``offset`` bytes from the top of the caller's stack (the CFA of the called
    function).
    """

    register: int | None = None
    offset: int | None = None
    float_register: int | None = None
