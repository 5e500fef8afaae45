"""The parameters of a C++ function by its demangled name."""

from __future__ import annotations

_OPENING, _CLOSING = "<([{", ">)]}"


def parameters(demangled: str) -> list[str]:
    """The types of its parameters: those in the last parentheses that stand outside of template arguments.

    [] for a function without any, and for a name without parentheses.
    """
    end = demangled.rfind(")")
    depth = 0
    for start in range(end, -1, -1):
        letter = demangled[start]
        depth += (letter in _CLOSING) - (letter in _OPENING)
        if depth == 0 and end >= 0:
            return split_types(demangled[start + 1 : end])
    return []


def split_types(text: str) -> list[str]:
    """``A, B<C, D>`` are two."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*found, last] if last else found
