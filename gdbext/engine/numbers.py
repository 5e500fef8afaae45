"""Numbers in foreign text: from the target, a file, the command line.

int() raises ValueError for more than 4,300 digits, takes quadratic time in Pythons before 3.11, and makes numbers that
C functions do not take. ``tests/unit/test_number_law.py`` finds calls of int() with text.
"""

from __future__ import annotations


def integer(text: str | bytes, base: int = 10) -> int:
    """Read a number as int() does. Raises ValueError, also for more than 20 digits, as 64 bits have."""
    if len(text) > 20:
        raise ValueError(f"a number of {len(text)} characters")
    return int(text, base)


def number(text: str, base: int = 10) -> int | None:
    """The number in a text of digits alone (from /proc, an environment variable, a name); None for anything else, and
    for more than 20 digits."""
    try:
        return integer(text, base) if text.isalnum() else None
    except ValueError:
        return None
