"""References and addresses of gdb's values."""

from __future__ import annotations

import gdb

WORD = (1 << 64) - 1
_REFERENCES = (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF)


def is_reference(kind: gdb.Type) -> bool:
    """To an object, lvalue or rvalue."""
    return kind.code in _REFERENCES


def address_of(value: gdb.Value) -> int | None:
    """Where it is; None where it is not in memory."""
    return int(value.address) & WORD if value.address is not None else None
