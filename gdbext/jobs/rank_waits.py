"""Which rank waits for which: collectives wait for all members that have not come, a send or recv for its other end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdbext.jobs.matching import Group
from gdbext.model.job.rank_report import RankReport
from gdbext.model.threads.collective_wait import CollectiveWait

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
    there = _at_unnumbered(reports)
    waits = {report.rank: report.wait for report in reports if report.rank is not None and report.wait is not None}
    for report in reports:
        if report.rank is None or not report.waits_for_ranks or _is_met(report, waits):
            continue
        targets = (_targets(report, by_name, sets) or _absent(report, by_name, there)) - {report.rank}
        if targets:
            found[report.rank] = targets
    return found


def _is_met(report: RankReport, waits: Mapping[int, CollectiveWait]) -> bool:
    """Its other end is in the recv of this send, or in the send of this recv: the transfer itself does not end."""
    wait = report.wait
    other = waits.get(wait.peer) if wait is not None and wait.peer is not None else None
    if wait is None or other is None or other.peer != report.rank:
        return False
    return {wait.op, other.op} == {"send", "recv"} and (wait.tag or 0) == (other.tag or 0)


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


def _at_unnumbered(reports: Sequence[RankReport]) -> Mapping[tuple[str, str], frozenset[int]]:
    """The ranks that wait in each operation without a number, by group and operation."""
    found: dict[tuple[str, str], set[int]] = {}
    for report in reports:
        if report.rank is not None and report.wait is not None and report.wait.seq is None:
            found.setdefault((report.wait.group, report.wait.op), set()).add(report.rank)
    return {key: frozenset(ranks) for key, ranks in found.items()}


def _absent(
    report: RankReport, groups: Mapping[str, Sequence[Group]], there: Mapping[tuple[str, str], frozenset[int]]
) -> frozenset[int]:
    """The members of the group that do not wait in the same operation without a number."""
    wait = report.wait
    if wait is None or wait.seq is not None or not wait.group:
        return frozenset()
    members = next((group.members for group in groups.get(wait.group, ()) if report.rank in group.states), ())
    return frozenset(members) - there[wait.group, wait.op]


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
