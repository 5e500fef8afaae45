"""Which rank waits for which: collectives wait for all members that have not come, a send or recv for its other end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdbext.jobs.matching import Group
from gdbext.model.job.rank_report import RankReport

Edges = Mapping[int, frozenset[int]]
"""Rank → the ranks that it waits for; only ranks that wait for some are keys."""


def edges(reports: Sequence[RankReport], groups: Sequence[Group]) -> Edges:
    """Of all ranks whose main thread waits in an operation."""
    by_name: dict[str, list[Group]] = {}
    for group in groups:
        for name in {group.name, group.label}:
            by_name.setdefault(name, []).append(group)
    sets: dict[tuple[str, int], frozenset[int]] = {}
    found: dict[int, frozenset[int]] = {}
    for report in reports:
        if report.rank is None or not report.waits_for_ranks:
            continue
        targets = _targets(report, by_name, sets) - {report.rank}
        if targets:
            found[report.rank] = targets
    return found


def _targets(
    report: RankReport, groups: Mapping[str, Sequence[Group]], sets: dict[tuple[str, int], frozenset[int]]
) -> frozenset[int]:
    wait = report.wait
    if wait is None:
        return frozenset()
    if wait.peer is not None:
        return frozenset((wait.peer,))
    if wait.seq is None:
        return frozenset()
    for group in groups.get(wait.group, ()):
        if report.rank in group.states:
            key = (f"{group.name} {len(group.members)} {group.members[:1]}", wait.seq)
            if key not in sets:
                sets[key] = frozenset(rank for rank in group.members if not _has_come(group, rank, wait.seq))
            return sets[key]
    return frozenset()


def _has_come(group: Group, rank: int, seq: int) -> bool:
    state = group.states.get(rank)
    if state is None:
        return False
    if state.issued:
        return max(each.seq for each in state.issued) >= seq
    return (state.enqueued or 0) >= seq


def roots(waits: Edges) -> tuple[int, ...]:
    """The ranks that others wait for and that wait for none themselves."""
    return tuple(sorted({target for targets in waits.values() for target in targets} - set(waits)))


def cycle(waits: Edges) -> tuple[int, ...]:
    """Ranks that wait for each other in a ring, each for the next; empty where nobody does."""
    done: set[int] = set()
    for start in sorted(waits):
        path: list[int] = []
        rank = start
        while rank in waits and rank not in done:
            if rank in path:
                return tuple(path[path.index(rank) :])
            path.append(rank)
            following = [each for each in sorted(waits[rank]) if each in waits]
            if not following:
                break
            rank = following[0]
        done.update(path)
    return ()
