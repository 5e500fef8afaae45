"""Reads JSON objects back as the records that they were written from (plain_json.py).

Nothing in a document is trusted: a member of another type, a text or a list that is too long, a number beyond 64 bits
are refused with BadData, which says where. A member that a record does not know is passed over: a newer version may add
some. One that is missing has its default.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from gdbext.engine.record import Enum
from gdbext.errors import BadData
from gdbext.render.plain_json import Way, members_of

Reader = Callable[[Any, str], Any]
"""Reads a value; its name in the document, for errors."""
RecordType = TypeVar("RecordType")

MAX_TEXT = 1 << 20
MAX_ITEMS = 1 << 20
_WORD = (1 << 64) - 1
_MOST = 1e18
"""The largest amount: 30 thousand million years in seconds."""


def from_json(kind: type[RecordType], value: Any, where: str) -> RecordType:
    """The record that an object describes. Raises BadData."""
    read: Any = _record_reader
    record: RecordType = read(kind)(value, where)
    return record


@cache
def _record_reader(kind: Any) -> Reader:
    limits = kind.json_limits() if hasattr(kind, "json_limits") else {}
    members = tuple(
        (
            member.name,
            member.attribute,
            _of_node(kind, ast.parse(member.type, mode="eval").body, limits.get(member.attribute)),
            member,
        )
        for member in members_of(kind)
        if member.is_field and member.way is not Way.INLINE
    )

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise refusal(value, where, "an object")
        fields = {}
        for name, attribute, reader, member in members:
            if name in value:
                fields[attribute] = reader(value[name], name)
            elif not member.has_default:
                raise BadData(f"{where} has no {name!r}")
        return kind(**fields)

    return read


def _of_node(owner: type, node: ast.expr, limit: int | None = None) -> Reader:
    if isinstance(node, ast.BinOp):
        return optional(_of_node(owner, node.left, limit))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        return array(_of_node(owner, node.slice.elts[0]), limit or MAX_ITEMS)
    name = ast.unparse(node)
    if name in _SIMPLE:
        return _SIMPLE[name]
    kind = getattr(sys.modules[owner.__module__], name)
    return _word_of(kind) if issubclass(kind, Enum) else _record_reader(kind)


def optional(reader: Reader) -> Reader:
    """Read as ``reader`` does, or null."""
    return lambda value, where: None if value is None else reader(value, where)


def array(reader: Reader, limit: int = MAX_ITEMS) -> Reader:
    """Read an array of at most ``limit`` such values."""

    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > limit:
            raise refusal(value, where, f"an array of at most {limit} items")
        return tuple([reader(item, where) for item in value])

    return read


def _word_of(kind: Any) -> Reader:
    def read(value: Any, where: str) -> Any:
        try:
            return kind(value)
        except (ValueError, TypeError):
            raise refusal(value, where, f"a word of {kind.__name__}") from None

    return read


def text(value: Any, where: str) -> str:
    """A string of at most a megabyte."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise refusal(value, where, "text")
    return value


def flag(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise refusal(value, where, "true or false")
    return value


def number(value: Any, where: str) -> int:
    """A whole number of at most 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -_WORD <= value <= _WORD:
        raise refusal(value, where, "a whole number")
    return value


def count(value: Any, where: str) -> int:
    """A whole number that is not negative."""
    checked = number(value, where)
    if checked < 0:
        raise refusal(value, where, "a number from 0 on")
    return checked


def amount(value: Any, where: str) -> float:
    """A number, with a fraction or without, from 0 to 1e18."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise refusal(value, where, "a quantity")
    return float(value)


_SIMPLE: dict[str, Reader] = {
    "str": text,
    "bool": flag,
    "int": number,
    "Count": count,
    "Amount": amount,
}


def refusal(value: Any, where: str, wanted: str) -> BadData:
    """The error of a value that is not what it must be."""
    kind = {dict: "an object", list: "an array", type(None): "null"}.get(type(value))
    return BadData(f"{where!r} is {kind or repr(value)[:60]}, and must be {wanted}")
