"""Damage to bytes."""

from __future__ import annotations

import random


def scatter(data: bytearray, start: int, size: int, count: int, chance: random.Random) -> None:
    """Overwrite ``count`` random bytes of ``data[start:start + size]`` with random ones."""
    for at, value in zip(chance.choices(range(start, start + size), k=count), chance.randbytes(count)):
        data[at] = value
