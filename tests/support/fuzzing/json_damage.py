"""Damage to a JSON document: values of another type, size or sign, members that are missing, renamed or repeated."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from .look import Change

_NUMBERS = (None, True, 0, 1, -1, 1 << 31, 1 << 63, 1 << 64, 10**40, 0.5, -1e300, float("inf"), float("nan"))
_TEXTS = ("", "\0", "\x1b[31mred", "x" * 5000, "\u202e", "\ud800", "9" * 400, "../../etc/passwd", "-1 -1 -1")
_SHAPES: tuple[Any, ...] = ([], {}, [[]], [None], {"": None}, [1 << 40] * 3, {"tid": "x"})
_VALUES = (*_NUMBERS, *_TEXTS, *_SHAPES, "0x", "0xffffffffffffffff", "-1")
_NAMES = ("", "x", "\0", "x" * 300, "\x1b[0m", "tid", "-1")
WILD = ("value", "value", "value", "near", "gone", "renamed", "repeated")
TAME = ("near", "near", "near", "value", "gone")


@dataclass(frozen=True)
class Member(Change):
    """What is at ``path``: ``how`` is "value" (``value``), "gone", "renamed" (``value``) or "repeated"."""

    path: tuple[Any, ...]
    how: str
    value: Any = None


def damage_json(
    document: Any, chance: Random, most: int = 20, hows: Sequence[str] = WILD, above: Sequence[str] = ()
) -> list[Member]:
    """Up to ``most`` changes, each at a place that is found by going down at random, from one of the members of
    ``above`` where there are any."""
    found: list[Member] = []
    for _ in range(chance.choice((1, 1, 1, 2, 5, most))):
        path: list[Any] = [chance.choice(above)] if above else []
        value = document[path[0]] if path else document
        while isinstance(value, (dict, list)) and value and (not path or chance.random() < 0.85):
            path.append(chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value)))
            value = value[path[-1]]
        how = chance.choice(hows)
        choices = {"value": _VALUES, "renamed": _NAMES, "near": [_near(value, chance)]}.get(how, [None])
        found.append(Member(tuple(path), "value" if how == "near" else how, chance.choice(choices)))
    return [change for change in found if change.path]


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
        return chance.choice((value[:at], value[:at] + letter + value[at + 1 :], value * 2, *_TEXTS))
    return chance.choice((value[:-1], value[::-1], value * 2, value[1:])) if isinstance(value, list) else value


def with_changes(document: Any, changes: Sequence[Change]) -> Any:
    """The document with the changes in it; what one of them took away the others leave alone. Whatever is not on the
    way to a change is shared with the undamaged document."""
    found = copy.copy(document)
    for change in changes:
        if isinstance(change, Member):
            with suppress(KeyError, IndexError, TypeError):  # another change has been here
                _apply(found, change)
    return found


def _apply(holder: Any, change: Member) -> None:
    *above, key = change.path
    for each in above:
        holder[each] = holder = copy.copy(holder[each])
    if change.how == "value":
        holder[key] = change.value
    elif change.how == "gone":
        del holder[key]
    elif isinstance(holder, dict):
        holder[change.value if change.how == "renamed" else f"{key}2"] = holder.pop(key)
    elif change.how == "repeated" and len(holder) < 10_000:
        holder[key:key] = [holder[key]] * 50
