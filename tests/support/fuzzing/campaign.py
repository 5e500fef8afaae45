"""A campaign: looks of all kinds in turn, shared out among workers, counted by kind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from .look import BLOCK, Kind, Result
from .worker import Worker


@dataclass
class Row:
    looks: int = 0
    refused: int = 0
    """The command said that it could not, and why."""
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        self.looks += 1
        self.refused += result.status != 0
        self.failures.update({what for what, _ in result.failures})
        self.seconds += result.seconds


def schedule(kinds: Sequence[Kind], first: int, looks: int) -> Iterator[tuple[str, int]]:
    """Kind and seed of each look: the kinds in turn, by their shares, so that any part of a campaign has them all."""
    seeds = {kind.name: first for kind in kinds}
    owed = dict.fromkeys(seeds, 0.0)
    total = sum(kind.share for kind in kinds)
    block = min(BLOCK, max(1, looks // (4 * len(kinds))) if looks else BLOCK)
    while True:
        for kind in kinds:
            owed[kind.name] += kind.share / total * len(kinds)
            if owed[kind.name] < 1:
                continue
            owed[kind.name] -= 1
            for _ in range(block):
                yield kind.name, seeds[kind.name]
                seeds[kind.name] += 1


def run(
    kinds: Sequence[Kind], first: int, looks: int, seconds: float, on_result: Callable[[Result], None]
) -> Mapping[str, Row]:
    """Run so many looks, or for so long (0: no limit), or until Ctrl+C; ``on_result`` is told each result."""
    by_name = {kind.name: kind for kind in kinds}
    rows = {name: Row() for name in (*by_name, "all")}
    worker = Worker(by_name)
    end = time.monotonic() + seconds if seconds else float("inf")
    try:
        for kind, seed in islice(schedule(kinds, first, looks), looks or None):
            if time.monotonic() >= end:
                break
            result = worker.result(kind, seed)
            rows[kind].add(result)
            rows["all"].add(result)
            on_result(result)
    except KeyboardInterrupt:
        return rows
    finally:
        worker.end()
    return rows


_LINE = "{:24}{:>8}{:>9}{:>10}{:>9}"


def table(rows: Mapping[str, Row]) -> str:
    lines = [_LINE.format("kind", "looks", "refused", "failures", "ms/look")]
    for name, row in rows.items():
        mean = f"{1000 * row.seconds / max(1, row.looks):.1f}"
        lines.append(_LINE.format(name, row.looks, row.refused, sum(row.failures.values()), mean))
    return "\n".join(lines)
