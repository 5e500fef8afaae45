"""Expressions in gdb's language, evaluated without any effect on the process: nothing is called, nothing written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import gdb

from gdbext.debuggers.gdb.values import WORD, address_of, is_reference
from gdbext.errors import UsageError

_CALLS = "may-call-functions"
"""gdb's setting, since gdb 9."""
_WRITES = re.compile(r"(?<![=!<>])=(?!=)|<<=|>>=|\+\+|--")
"""Assignments. gdb's settings against writing cannot be changed while there is a process."""
_NUMBERS = (gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_INT)


def evaluated_address(expression: str) -> int:
    """What a pointer or a number is, else where the object is. Raises UsageError in gdb's words."""
    if _WRITES.search(expression):
        raise UsageError(f"{expression!r} would change the process", help="name an object, or a pointer to it")
    try:
        with _without_calls():
            found = _address(gdb.parse_and_eval(expression))
    except gdb.error as error:
        raise UsageError(
            f"{expression!r} is not an address: {error}",
            why="gdb evaluates it in the selected frame; nothing is called in the process, and nothing written",
            help="give an address, $REGISTER, *$REGISTER+8, --py NAME, or select the frame that has the variable",
        ) from error
    if found is None:
        raise UsageError(f"{expression!r} has no address", help="name an object in memory, or a pointer to it")
    return found


def _address(value: gdb.Value) -> int | None:
    if is_reference(value.type.strip_typedefs()):
        value = value.referenced_value()
    if value.type.strip_typedefs().code in _NUMBERS:
        return int(value) & WORD
    return address_of(value)


@contextmanager
def _without_calls() -> Iterator[None]:
    allowed = bool(gdb.parameter(_CALLS))
    try:
        if allowed:
            gdb.execute(f"set {_CALLS} off", False, True)
        yield
    finally:
        if allowed:
            gdb.execute(f"set {_CALLS} on", False, True)
