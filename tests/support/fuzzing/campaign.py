"""A campaign: looks of all kinds in turn, shared out among workers, counted by kind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .look import BLOCK, Kind, Result
from .worker import Worker, wait_for


@dataclass
class Row:
    """What is counted of a kind."""

    looks: int = 0
    refused: int = 0
    """The command said that it could not, and why."""
    failures: Counter[str] = field(default_factory=Counter)
    excused: int = 0
    seconds: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def add(self, result: Result) -> None:
        """Count a look."""
        self.looks += 1
        self.refused += result.status != 0
        self.failures.update({what for what, _ in result.failures})
        self.excused += len(result.excused)
        self.seconds += result.seconds
        self.slowest = max(self.slowest, (result.seconds, result.name))
        self.largest = max(self.largest, (result.megabytes, result.name))


@dataclass
class Limits:
    """When a campaign ends: after so many looks or seconds, whichever is first; 0 is no limit."""

    looks: int = 0
    seconds: float = 0.0


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
    kinds: Sequence[Kind], first: int, limits: Limits, jobs: int, on_result: Callable[[Result], None]
) -> Mapping[str, Row]:
    """Run looks until a limit is reached, or Ctrl+C; ``on_result`` is told each result."""
    by_name = {kind.name: kind for kind in kinds}
    rows = {name: Row() for name in by_name}
    workers = [Worker(by_name) for _ in range(jobs)]
    busy: list[Worker] = []
    plan = schedule(kinds, first, limits.looks)
    asked, end = 0, time.monotonic() + limits.seconds

    def take(worker: Worker, result: Result) -> None:
        busy.remove(worker)
        rows[result.kind].add(result)
        on_result(result)

    try:
        while True:
            is_over = bool(limits.looks and asked >= limits.looks) or bool(limits.seconds and time.monotonic() > end)
            for worker in workers:
                if worker not in busy and not is_over and (not limits.looks or asked < limits.looks):
                    worker.ask(*next(plan))
                    busy.append(worker)
                    asked += 1
            if not busy:
                return rows
            for worker in wait_for(busy, 1.0):
                result = worker.answer()
                if result is not None:
                    take(worker, result)
            for worker in [each for each in busy if each.is_late]:
                take(worker, worker.give_up())
    except KeyboardInterrupt:
        return rows
    finally:
        for worker in workers:
            worker.end()


_COLUMNS = (("looks", 8), ("refused", 9), ("excused", 9), ("failures", 10), ("ms/look", 9), ("slowest", 9), ("MB", 6))


def table(rows: Mapping[str, Row]) -> str:
    """The campaign, a line a kind."""
    lines = [f"{'kind':24}" + "".join(f"{name:>{width}}" for name, width in _COLUMNS)]
    total = Row()
    for name, row in rows.items():
        lines.append(_line(name, row))
        total.looks += row.looks
        total.refused += row.refused
        total.excused += row.excused
        total.failures.update(row.failures)
        total.seconds += row.seconds
        total.slowest = max(total.slowest, row.slowest)
        total.largest = max(total.largest, row.largest)
    lines.append(_line("all", total))
    if total.failures:
        lines.append("failures: " + ", ".join(f"{count} {what}" for what, count in total.failures.most_common()))
    return "\n".join(lines)


def _line(name: str, row: Row) -> str:
    mean = 1000 * row.seconds / row.looks if row.looks else 0.0
    return (
        f"{name:24}{row.looks:8}{row.refused:9}{row.excused:9}{sum(row.failures.values()):10}{mean:9.1f}"
        f"{row.slowest[0]:8.2f}s{row.largest[0]:6}"
    )
