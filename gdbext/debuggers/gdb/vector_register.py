"""Vector registers as gdb shows them: unions of arrays of what may be in them."""

from __future__ import annotations

import gdb

_AGGREGATES = (gdb.TYPE_CODE_UNION, gdb.TYPE_CODE_STRUCT)
_WORD = 8


def low_word(register: gdb.Value) -> int:
    """The low 8 bytes of a register, by the first view of it as words (``v2_int64``, ``d.u``). Raises gdb.error."""
    found = _word(register)
    if found is None:
        raise gdb.error("it cannot be read as words")
    return int(found) & (1 << 8 * _WORD) - 1


def _word(value: gdb.Value) -> gdb.Value | None:
    kind = value.type.strip_typedefs()
    if kind.code == gdb.TYPE_CODE_ARRAY:
        element = kind.target().strip_typedefs()
        return value[0] if (element.code, element.sizeof) == (gdb.TYPE_CODE_INT, _WORD) else None
    if kind.code in _AGGREGATES:
        return next((found for found in (_word(value[field]) for field in kind.fields()) if found is not None), None)
    return None
