"""A campaign: looks of all kinds in turn, shared out among workers, counted by kind."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from . import core_kinds, job_kinds, live_kinds, recording_kinds
from .look import BLOCK, Kind, Result
from .worker import Worker

Row = Counter[str]
"""By kind: looks; refused, where the command said that it could not, and why; failures; milliseconds."""


def available() -> list[Kind]:
    """The kinds of damage for which this machine has the programs and the rights."""
    found = [*recording_kinds.KINDS, *job_kinds.KINDS]
    if shutil.which("gdb") and shutil.which("gcc"):
        found += core_kinds.KINDS
    if live_kinds.can_trace():
        found += live_kinds.KINDS
    return found


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
    rows: dict[str, Row] = {name: Counter() for name in (*by_name, "all")}
    worker = Worker(by_name)
    end = time.monotonic() + seconds if seconds else float("inf")
    try:
        for kind, seed in islice(schedule(kinds, first, looks), looks or None):
            if time.monotonic() >= end:
                break
            result = worker.result(kind, seed)
            costs = int(1000 * result.seconds)
            for row in (rows[kind], rows["all"]):
                row.update(looks=1, refused=result.status != 0, failures=len(result.failures), milliseconds=costs)
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
        mean = f"{row['milliseconds'] / max(1, row['looks']):.1f}"
        lines.append(_LINE.format(name, row["looks"], row["refused"], row["failures"], mean))
    return "\n".join(lines)
