"""A campaign: looks of all kinds in turn, shared out among workers, counted by kind."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, cycle, islice

from . import core_kinds, job_kinds, live_kinds, recording_kinds
from .look import BLOCK, Kind, Result
from .worker import Worker

Row = Counter[str]
"""By kind: looks; refused, where the command said that it could not, and why; failures; milliseconds."""


def available() -> list[Kind]:
    cores = core_kinds.KINDS if shutil.which("gdb") and shutil.which("gcc") else ()
    return [*recording_kinds.KINDS, *job_kinds.KINDS, *cores, *(live_kinds.KINDS if live_kinds.can_trace() else ())]


def schedule(kinds: Sequence[Kind], first: int, looks: int) -> Iterator[tuple[str, int]]:
    """Kind and seed of each look: the kinds in turn, by their shares, so that any part of a campaign has them all."""
    block = min(BLOCK, max(1, looks // (4 * len(kinds))) if looks else BLOCK)
    turns = sorted((turn / kind.share, kind.name) for kind in kinds for turn in range(kind.share))
    seeds = {kind.name: count(first) for kind in kinds}
    for _, name in cycle(turns):
        for seed in islice(seeds[name], block):
            yield name, seed


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


def table(rows: Mapping[str, Row]) -> str:
    lines: list[tuple[str, ...]] = [("kind", "looks", "refused", "failures", "ms/look")]
    for name, row in rows.items():
        mean = f"{row['milliseconds'] / max(1, row['looks']):.1f}"
        lines.append((name, *(str(row[column]) for column in lines[0][1:4]), mean))
    return "\n".join("{:24}{:>8}{:>9}{:>10}{:>9}".format(*line) for line in lines)
