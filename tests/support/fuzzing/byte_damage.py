"""Damage to the bytes of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from .look import Change

_NUMBERS = (1 << 31, (1 << 63) - 1, 1 << 40, 4096, 16)


@dataclass(frozen=True)
class Bytes(Change):
    """In place of as many at ``offset``; in place of ``gone``, which may be all to the end."""

    offset: int
    data: bytes
    gone: int


def scatter(data: bytearray, start: int, size: int, count: int, chance: Random) -> None:
    """Overwrite ``count`` random bytes of ``data[start:start + size]`` with random ones."""
    for at, value in zip(chance.choices(range(start, start + size), k=count), chance.randbytes(count)):
        data[at] = value


def overwrite(chance: Random, start: int, end: int, size: int) -> list[Bytes]:
    """Bytes, words and numbers between ``start`` and ``end`` of a file of ``size`` bytes."""
    found: list[Bytes] = []
    for _ in range(chance.choice((1, 1, 2, 4, 16, 100))):
        at = chance.randrange(start, max(end, start + 1))
        width = chance.choice((1, 1, 2, 4, 8))
        same, noise = bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF))]) * width, chance.randbytes(width)
        data = chance.choice((same, noise, chance.choice(_NUMBERS).to_bytes(8, "little")[:width]))[: size - at]
        found.append(Bytes(at, data, len(data)))
    return found


def damage_bytes(chance: Random, start: int, end: int, size: int) -> list[Bytes]:
    """The same; sometimes bytes are pushed in, or the end is missing."""
    found = overwrite(chance, start, end, size)
    if chance.random() < 0.1:
        at = chance.randrange(start, max(end, start + 1))
        found.append(Bytes(at, chance.randbytes(chance.choice((1, 8, 4096))), 0))
    if chance.random() < 0.15:
        found.append(Bytes(chance.randrange(size + 1), b"", 1 << 62))
    return found


def with_bytes(data: bytes, changes: Sequence[Change]) -> bytes:
    """The file with the changes in it, one after the other."""
    found = bytearray(data)
    for change in changes:
        if isinstance(change, Bytes):
            found[change.offset : change.offset + change.gone] = change.data
    return bytes(found)
