"""Folding of repetition: 25,000 frames of recursion are a handful of lines and a count."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

MAX_PERIOD = 24
"""Items in the longest block that is recognised; a redispatch cycle through several operators is shorter."""
MIN_REPEATS = 3
"""A block is folded when it stands at least that often in a row."""


class Run(NamedTuple):
    """``period`` items from ``start``, standing ``times`` times in a row (1 where nothing repeats)."""

    start: int
    period: int
    times: int


def fold(items: Sequence[Hashable]) -> Iterator[Run]:
    """Covers ``items`` by runs, in order. Linear in the items for a fixed MAX_PERIOD."""
    position = 0
    plain = 0
    while position < len(items):
        period, count = _longest_repeat(items, position)
        if count < MIN_REPEATS:
            position += 1
            continue
        if plain < position:
            yield Run(plain, position - plain, 1)
        yield Run(position, period, count)
        position += period * count
        plain = position
    if plain < len(items):
        yield Run(plain, len(items) - plain, 1)


def _longest_repeat(items: Sequence[Hashable], start: int) -> tuple[int, int]:
    best = (0, 1)
    for period in range(1, MAX_PERIOD + 1):
        if start + period * MIN_REPEATS > len(items):
            break
        count = _repeats(items, start, period)
        if count >= MIN_REPEATS and period * count > best[0] * best[1]:
            best = (period, count)
    return best


def _repeats(items: Sequence[Hashable], start: int, period: int) -> int:
    position = start + period
    while position < len(items) and items[position] == items[position - period]:
        position += 1
    return (position - start) // period
