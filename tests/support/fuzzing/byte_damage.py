"""Damage to the bytes of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from .look import Change

_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF)
_NUMBERS = (1 << 31, (1 << 63) - 1, 1 << 40, 4096, 16)


@dataclass(frozen=True)
class Bytes(Change):
    offset: int
    data: bytes


@dataclass(frozen=True)
class Cut(Change):
    size: int


@dataclass(frozen=True)
class Insert(Change):
    offset: int
    data: bytes


def scatter(data: bytearray, start: int, size: int, count: int, chance: Random) -> None:
    """Overwrite ``count`` random bytes of ``data[start:start + size]`` with random ones."""
    for at, value in zip(chance.choices(range(start, start + size), k=count), chance.randbytes(count)):
        data[at] = value


def damage_bytes(chance: Random, start: int, end: int, size: int, cuts: bool = True) -> list[Change]:
    """Bytes, words and numbers between ``start`` and ``end`` of a file of ``size`` bytes; its end."""
    found: list[Change] = []
    for _ in range(chance.choice((1, 1, 2, 4, 16, 100))):
        at = chance.randrange(start, max(end, start + 1))
        width = chance.choice((1, 1, 2, 4, 8))
        same, noise = bytes([chance.choice(_EXTREMES)]) * width, chance.randbytes(width)
        data = chance.choice((same, noise, chance.choice(_NUMBERS).to_bytes(8, "little")[:width]))
        found.append(Bytes(at, data[: size - at]))
    if cuts and chance.random() < 0.15:
        found.append(Cut(chance.randrange(size + 1)))
    if cuts and chance.random() < 0.1:
        at = chance.randrange(start, max(end, start + 1))
        found.append(Insert(at, chance.randbytes(chance.choice((1, 8, 4096)))))
    return found


def with_bytes(data: bytes, changes: Sequence[Change]) -> bytes:
    """The file with the changes in it: bytes are overwritten before any are pushed in, and it is cut last."""
    found = bytearray(data)
    for change in sorted(changes, key=lambda each: (Bytes, Insert, Cut).index(type(each))):
        if isinstance(change, Bytes):
            found[change.offset : change.offset + len(change.data)] = change.data
        elif isinstance(change, Insert):
            found[change.offset : change.offset] = change.data
        elif isinstance(change, Cut):
            del found[change.size :]
    return bytes(found)
