"""Repetitions: blocks of a sequence that occur several times in a row, found in time linear in its length."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

FOLD_PERIOD = 24  # most items of a folded block; a redispatch cycle through several operators is shorter
FOLD_TIMES = 3  # least number of times in a row that a folded block occurs
_ZERO_OR_ONE = bytes([0]) + bytes([1]) * 255
MOST_WHOLE = 4000
"""``fold_long`` leaves lists of up to so many items unfolded: deeper than intended recursion in Python."""


class Repetition(NamedTuple):
    """``period`` items from index ``start`` on occur ``times`` times in a row (1: they are not repeated)."""

    start: int
    period: int
    times: int

    @property
    def length(self) -> int:
        """The number of items in all occurrences."""
        return self.period * self.times


def longest(items: Sequence[Hashable], max_period: int) -> Repetition | None:
    """The longest repetition, with its smallest period; None if nothing occurs twice in a row. The time is linear in
    the number of items."""
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
    """Divide ``items`` into repetitions, in order; of several with the same start it takes the longest. The time is
    linear in the number of items."""
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
    """Fold as ``fold`` does, but only lists of more than MOST_WHOLE items."""
    if len(items) > MOST_WHOLE:
        yield from fold(items, 128)  # one recursion through Python and the dispatcher has dozens of native frames
    elif items:
        yield Repetition(0, len(items), 1)


def _planes(items: Sequence[Hashable]) -> Sequence[bytes]:
    """Numbers the distinct items and returns rows of bytes: the lowest byte of each item's number, the second byte of
    each, and so on; rows of zeros alone are left out, except for the first."""
    numbers: dict[Hashable, int] = {}
    codes = array("I", [numbers.setdefault(item, len(numbers)) for item in items]).tobytes()
    size = array("I").itemsize
    planes = [codes[at::size] for at in range(size)]
    return [plane for plane in planes if any(plane)] or planes[:1]


def _stretches(planes: Sequence[bytes], period: int, least: int) -> Iterator[tuple[int, int]]:
    """The ascending ranges [start, end) of at least ``least`` items, each of which equals the item ``period`` later."""
    difference = 0
    for plane in planes:
        difference |= int.from_bytes(plane[period:], "little") ^ int.from_bytes(plane[:-period], "little")
    differs = difference.to_bytes(len(planes[0]) - period, "little").translate(_ZERO_OR_ONE)
    equal, end = bytes(least), 0
    while (start := differs.find(equal, end)) >= 0:
        end = differs.find(1, start)
        end = len(differs) if end < 0 else end
        yield start, end
