"""Expressions in the language of ``frame variable``: LLDB reads memory for them, and calls and writes nothing."""

from __future__ import annotations

import lldb

from gdbext.errors import UsageError


def evaluated_address(frame: lldb.SBFrame, expression: str) -> int:
    """What a pointer or a number is, else where the object is. Raises UsageError."""
    found = frame.GetValueForVariablePath(expression)
    if not found.IsValid() or not found.GetError().Success():
        raise UsageError(
            f"{expression!r} is not an address: the selected frame has no such variable",
            why="names with ., ->, [ ], * and & are understood, as by frame variable; nothing is called in the process",
            help="give an address, $REGISTER, *$REGISTER+8, --py NAME, or select the frame that has the variable",
        )
    kind = found.GetType().GetCanonicalType()
    if kind.IsReferenceType() or kind.IsPointerType() or not kind.IsAggregateType():
        return int(found.GetValueAsUnsigned())
    address = found.GetLoadAddress()
    if address == lldb.LLDB_INVALID_ADDRESS:
        raise UsageError(f"{expression!r} has no address", help="name an object in memory, or a pointer to it")
    return int(address)
