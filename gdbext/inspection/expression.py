"""Addresses as users write them: numbers, and registers of the selected thread."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gdbext.errors import UsageError

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

NUMBER = r"(0x[0-9a-fA-F]{1,16}|\d{1,20})"
"""The pattern of an address or an offset; ``number`` takes it."""
WORD = (1 << 64) - 1
_REGISTER = re.compile(rf"(\*?)\$(\w+)\s*(?:([+-])\s*{NUMBER})?")


def number(text: str) -> int:
    """What ``NUMBER`` matches, as C's programmers mean it but without octal: 010 is ten."""
    return int(text, 16 if text.startswith("0x") else 10)


def register_value(session: Session, expression: str, instead: str) -> int | None:
    """``$NAME``, ``*$NAME``, ``*$NAME+8``: a register of the selected thread, or the word that it points at.

    None where the expression is none of these. ``instead`` is what the user can give where no thread is selected.
    Raises UsageError, MemoryFault.
    """
    found = _REGISTER.fullmatch(expression)
    if found is None:
        return None
    star, name, sign, offset = found.groups()
    thread = session.target.selected_thread()
    if thread is None:
        raise UsageError("no thread is selected, so there are no registers", help=f"give {instead} itself")
    registers = thread.registers()
    if name not in registers:
        raise UsageError(f"there is no register {name!r}", help=f"registers are: {', '.join(sorted(registers))}")
    value = registers[name] + (number(offset) if offset else 0) * (-1 if sign == "-" else 1)
    return session.memory.u64(value & WORD) if star else value & WORD
