"""Numbers in foreign text: from the target, a file, the command line.

int() raises ValueError for more than 4,300 digits, takes quadratic time in Pythons before 3.11, and makes numbers that
nothing takes. ``tests/unit/test_number_law.py`` finds where text is given to it.
"""

from __future__ import annotations

_MOST_DIGITS = 20
"""Digits of the largest number that a word of 64 bits holds."""


def integer(text: str | bytes, base: int = 10) -> int:
    """Read a number as int() does. Raises ValueError, also where it has more digits than a word of memory holds."""
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} characters")
    return int(text, base)


def number(text: str, base: int = 10) -> int | None:
    """The number of nothing but digits that a file of /proc, a variable of the environment or a name has in it, as the
    target's user or a recording wrote it; None for anything else, and for one that no word of memory holds."""
    try:
        return integer(text, base) if text.isalnum() else None
    except ValueError:
        return None
