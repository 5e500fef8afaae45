"""Damage to a JSON document: values of another type, size or sign, members that are missing, renamed or repeated."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from .look import Change

Path = tuple[Any, ...]

_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    -1,
    1 << 31,
    1 << 63,
    1 << 64,
    10**40,
    0.5,
    -1e300,
    float("inf"),
    float("nan"),
    "",
    "\0",
    "\x1b[31mred",
    "x" * 5000,
    "\u202e",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    {"": None},
    "0x",
    "0xffffffffffffffff",
    "-1",
    [1 << 40] * 3,
    {"tid": "x"},
)


@dataclass(frozen=True)
class Member(Change):
    """What is at ``path``: ``how`` is "value" (``value``), "gone", "renamed" (``value``) or "repeated"."""

    path: Path
    how: str
    value: Any = None

    def __str__(self) -> str:
        place = "/".join(map(str, self.path))
        return f"{place} {self.how} {self.value!r:.60}" if self.how in ("value", "renamed") else f"{place} {self.how}"


def damage_json(document: Any, chance: Random, most: int = 20) -> list[Change]:
    """Up to ``most`` changes, each at a place that is found by going down at random."""
    found: list[Change] = []
    for _ in range(chance.choice((1, 1, 1, 2, 5, most))):
        path = _somewhere(document, chance)
        how = chance.choice(("value", "value", "value", "near", "gone", "renamed", "repeated"))
        if not path:
            continue
        if how == "near":
            found.append(Member(path, "value", _near(value_at(document, path), chance)))
        else:
            value = chance.choice(_VALUES) if how == "value" else _name(chance) if how == "renamed" else None
            found.append(Member(path, how, value))
    return found


def _somewhere(document: Any, chance: Random) -> Path:
    path: list[Any] = []
    value = document
    while isinstance(value, (dict, list)) and value and (not path or chance.random() < 0.85):
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        path.append(key)
        value = value[key]
    return tuple(path)


def value_at(document: Any, path: Path) -> Any:
    """What is at a path."""
    for key in path:
        document = document[key]
    return document


def _near(value: Any, chance: Random) -> Any:
    """A value of the same type that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        bit = 1 << chance.randrange(48)
        return chance.choice((value + 1, value - 1, value + 8, value - 8, value * 2, -value, value ^ bit))
    if isinstance(value, str):
        at = chance.randrange(len(value) + 1)
        letter = chr(chance.choice((0, 10, 27, 48, 0x202E)))
        return chance.choice((value[:at], value[:at] + letter + value[at + 1 :], value * 2))
    if isinstance(value, list):
        return chance.choice((value[:-1], value[::-1], value * 2, value[1:]))
    return value


def _name(chance: Random) -> str:
    return chance.choice(("", "x", "\0", "x" * 300, "\x1b[0m", "tid", "-1"))


def with_changes(document: Any, changes: Sequence[Change]) -> Any:
    """The document with the changes in it; what one of them took away the others leave alone. Whatever is not on the
    way to a change is shared with the undamaged document."""
    found = copy.copy(document)
    for change in changes:
        if isinstance(change, Member):
            with suppress(KeyError, IndexError, TypeError):  # another change has been here
                _apply(_own_holder(found, change.path[:-1]), change)
    return found


def _own_holder(document: Any, path: Path) -> Any:
    """The value at the path, it and all around it copied."""
    for key in path:
        document[key] = document = copy.copy(document[key])
    return document


def _apply(holder: Any, change: Member) -> None:
    key = change.path[-1]
    if change.how == "value":
        holder[key] = change.value
    elif change.how == "gone":
        del holder[key]
    elif isinstance(holder, dict):
        holder[change.value if change.how == "renamed" else f"{key}2"] = holder.pop(key)
    elif change.how == "repeated" and len(holder) < 10_000:
        holder[key:key] = [holder[key]] * 50
