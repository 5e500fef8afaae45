"""Sets of ranks as people write them: ``0-4,6-7`` (ClusterShell's RangeSet, without padding and steps)."""

from __future__ import annotations

from collections.abc import Iterable

from gdbext.errors import BadData

LIMIT = 1 << 24
"""Ranks of a set; a range is not believed to have more."""


def fold(ranks: Iterable[int]) -> str:
    """The text of a set; "" for an empty one."""
    ranges: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def expand(text: str) -> list[int]:
    """The ranks of a text, in order. Raises BadData for anything else."""
    found: list[int] = []
    for piece in text.split(",") if text else ():
        first, _, last = piece.partition("-")
        if not first.isdecimal() or not (last.isdecimal() if "-" in piece else True):
            raise BadData(f"{text!r} is not a set of ranks")
        end = int(last or first)
        if end < int(first) or end - int(first) > LIMIT:
            raise BadData(f"{text!r} is not a set of ranks")
        found.extend(range(int(first), end + 1))
    return sorted(set(found))
