"""Repetitions: blocks of a sequence that occur several times in a row, found in time linear in its length."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

FOLD_PERIOD = 24
"""Items in the longest block that is folded; a redispatch cycle through several operators is shorter."""
FOLD_TIMES = 3
"""A block is folded when it occurs at least that often in a row."""
_ZERO_OR_ONE = bytes([0]) + bytes([1]) * 255
MOST_WHOLE = 4000
"""Items of a list in which nothing is folded: deeper than honest recursion goes in Python."""
_WHOLE_PERIOD = 128
"""Items in the longest block of such a list: a turn through Python and the dispatcher takes dozens of native frames."""


class Repetition(NamedTuple):
    """``period`` items from ``start``, ``times`` times in a row (1 where nothing repeats)."""

    start: int
    period: int
    times: int

    @property
    def length(self) -> int:
        """Items in all its blocks."""
        return self.period * self.times


def longest(items: Sequence[Hashable], max_period: int) -> Repetition | None:
    """The longest repetition, with its smallest period; None where nothing occurs twice in a row. Linear in the items
    for a given ``max_period``."""
    planes = _planes(items)
    best: Repetition | None = None
    for period in range(1, min(max_period, len(items) // 2) + 1):
        stretches = _stretches(planes, period, period)
        start, end = max(stretches, key=lambda stretch: stretch[1] - stretch[0], default=(0, 0))
        repetition = Repetition(start, period, (end - start) // period + 1)
        if end and (not best or repetition.length > best.length + period):
            best = repetition
        if best and best.length * 2 > len(items):
            break
    return best


def fold(items: Sequence[Hashable], max_period: int = FOLD_PERIOD) -> Iterator[Repetition]:
    """Covers ``items`` by repetitions, in order; where several begin, the one of most items. Linear in the items."""
    planes = _planes(items)
    longest_period = min(max_period, len(items) // FOLD_TIMES)
    ahead = {
        period: deque(_stretches(planes, period, period * (FOLD_TIMES - 1))) for period in range(1, longest_period + 1)
    }
    plain = position = 0
    while position < len(items):
        best: Repetition | None = None
        for period, stretches in ahead.items():
            while stretches and stretches[0][1] - max(position, stretches[0][0]) < period * (FOLD_TIMES - 1):
                stretches.popleft()  # too short from here on
            if stretches and stretches[0][0] <= position:
                repetition = Repetition(position, period, (stretches[0][1] - position) // period + 1)
                if not best or repetition.length > best.length:
                    best = repetition
        if not best:
            position = min((stretches[0][0] for stretches in ahead.values() if stretches), default=len(items))
            continue
        if plain < position:
            yield Repetition(plain, position - plain, 1)
        yield best
        plain = position = position + best.length
    if plain < len(items):
        yield Repetition(plain, len(items) - plain, 1)


def fold_long(items: Sequence[Hashable]) -> Iterator[Repetition]:
    """Fold as ``fold`` does, but only where the list is very long."""
    if len(items) > MOST_WHOLE:
        yield from fold(items, _WHOLE_PERIOD)
    elif items:
        yield Repetition(0, len(items), 1)


def _planes(items: Sequence[Hashable]) -> Sequence[bytes]:
    """Equal numbers for equal items, as rows of bytes: the first byte of each number, the second byte of each, and so
    on; at least one row, and no further ones of zeros alone."""
    numbers: dict[Hashable, int] = {}
    codes = array("I", [numbers.setdefault(item, len(numbers)) for item in items]).tobytes()
    size = array("I").itemsize
    planes = [codes[at::size] for at in range(size)]
    return [plane for plane in planes if any(plane)] or planes[:1]


def _stretches(planes: Sequence[bytes], period: int, least: int) -> Iterator[tuple[int, int]]:
    """The ranges [start, end) of at least ``least`` items in which each item equals the one ``period`` items later, in
    order."""
    difference = 0
    for plane in planes:
        difference |= int.from_bytes(plane[period:], "little") ^ int.from_bytes(plane[:-period], "little")
    differs = difference.to_bytes(len(planes[0]) - period, "little").translate(_ZERO_OR_ONE)
    equal, end = bytes(least), 0
    while (start := differs.find(equal, end)) >= 0:
        end = differs.find(1, start)
        end = len(differs) if end < 0 else end
        yield start, end
