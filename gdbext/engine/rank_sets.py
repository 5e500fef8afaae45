"""Sets of ranks as text: ``0-4,6-7`` (ClusterShell's RangeSet, without padding and steps)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator

from gdbext.engine.numbers import number
from gdbext.errors import BadData

MOST_RANKS = 1 << 20  # most ranks of a job and of a set; larger claims are refused


class RankRanges(Collection[int]):
    """A set of ranks as ranges: its memory use grows with its gaps, not with its claimed size."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """``ranges``: (first, last), ascending and not adjacent."""
        pairs = tuple(ranges)
        self._starts = [first for first, _ in pairs]
        self._lasts = [last for _, last in pairs]

    @classmethod
    def absent(cls, size: int, present: Iterable[int]) -> RankRanges:
        """The ranks below ``size`` that are not ``present``."""
        bounds = [-1, *sorted({rank for rank in present if 0 <= rank < size}), size]
        return cls((left + 1, right - 1) for left, right in zip(bounds, bounds[1:]) if right - left > 1)

    def __contains__(self, rank: object) -> bool:
        """True if one of the ranges has the rank."""
        if not isinstance(rank, int):
            return False
        at = bisect_right(self._starts, rank) - 1
        return at >= 0 and rank <= self._lasts[at]

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in zip(self._starts, self._lasts))

    def __iter__(self) -> Iterator[int]:
        for first, last in zip(self._starts, self._lasts):
            yield from range(first, last + 1)

    def __str__(self) -> str:
        ranges = zip(self._starts, self._lasts)
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def fold(ranks: Iterable[int]) -> str:
    """The text of a set; "" for an empty one."""
    if isinstance(ranks, RankRanges):
        return str(ranks)
    ranges: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        first = ranges.pop()[0] if ranges and ranges[-1][1] == rank - 1 else rank
        ranges.append((first, rank))
    return str(RankRanges(ranges))


def expand(text: str, limit: int = MOST_RANKS) -> list[int]:
    """The ascending ranks of a set's text. Raises BadData for other text and for more than ``limit`` ranks."""
    ranks: list[int] = []
    for piece in text.split(",") if text else ():
        first, _, last = piece.partition("-")
        begin, end = number(first), number(last if "-" in piece else first)
        if begin is None or end is None:
            raise BadData(f"{text[:80]!r} is not a set of ranks")
        if end < begin or len(ranks) + end - begin >= limit:
            raise BadData(f"{text[:80]!r} is not a set of up to {limit} ranks")
        ranks.extend(range(begin, end + 1))
    return sorted(set(ranks))
