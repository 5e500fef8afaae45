"""The arguments of a schema's text, by type and name."""

from __future__ import annotations

import re

_IN_REGISTERS = ("()", "int", "bool", "float", "ScalarType", "Layout")
_WITH_DESTRUCTORS = ("Scalar", "SymInt", "SymFloat", "SymBool")


def schema_types(text: str) -> list[tuple[str, str]]:
    """(type without alias mark, name) of each argument of a schema."""
    inside = text[text.find("(") + 1 : text.rfind(") ->")]
    found = []
    for part in re.split(r", (?![^(\[]*[)\]])", inside):
        words = re.sub(r"\([^)]*\)", "", part).split("=")[0].split()
        if len(words) == 2:
            found.append((words[0], words[1]))
    return found


def hidden_result(schema: str) -> bool | None:
    """The result goes through a hidden first argument: a new tensor or several results do, and whatever has a
    destructor; a reference, a number or an enumeration does not.

    None where the schema's result is something else. Results of C++ functions: torchgen/api/cpp.py; classes that have
    destructors: c10/core/Scalar.h, SymInt.h, SymFloat.h, SymBool.h.
    """
    result = schema.rpartition("-> ")[2].strip()
    if result.startswith("Tensor"):
        return "!" not in result
    if result in _IN_REGISTERS:
        return False
    return True if result.startswith("(") or result in _WITH_DESTRUCTORS else None
