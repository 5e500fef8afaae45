"""Collectives matched over ranks, by the rules of PyTorch's analyser.

Source: torch/distributed/flight_recorder/components/types.py (``Op.match``, ``Op.dtype_mismatch``) of 2.13.0. Unlike
there, a rank whose operation has completed while others wait is no mismatch by itself: a broadcast's root goes on.

Which rank waits for which: collectives wait for all members that have not come, a send or recv for its other end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.engine.rank_sets import MOST_RANKS, expand
from gdbext.errors import BadData
from gdbext.tools.ranks.job_report import CollectiveMatch, GroupState, Issued, MatchState, RankReport, Variant
from gdbext.torch.torch_symbol import RPC_CALLS

_ANY_INPUTS = ("all_to_all", "scatter")
_ANY_OUTPUTS = ("all_to_all", "gather")
_UNEQUAL = ("all_to_all", "alltoall_base", "all_to_all_single")
"""Operations whose tensors differ from rank to rank."""
MOST_MEMBERS = MOST_RANKS
"""Members of all groups together that are listed one by one."""


class Group(NamedTuple):
    """One group over all ranks that were reached."""

    name: str
    label: str
    members: tuple[int, ...]
    states: Mapping[int, GroupState]
    """The states of the group, by rank."""


def groups_of(reports: Sequence[RankReport]) -> list[Group]:
    """All groups, the largest first."""
    found: dict[tuple[str, str], dict[int, GroupState]] = {}
    for report in reports:
        if report.rank is not None:
            for state in report.groups:
                found.setdefault((state.name, state.ranks), {})[report.rank] = state
    _join_destroyed(found)
    groups, left = [], MOST_MEMBERS
    for (name, ranks), states in found.items():
        members = _members(ranks, states, left)
        left -= len(members)
        groups.append(Group(name, _label(states), members, states))
    return sorted(groups, key=lambda group: (-len(group.members), group.name))


def _join_destroyed(found: dict[tuple[str, str], dict[int, GroupState]]) -> None:
    """A rank that has destroyed its group still has the recorded operations, but no members: those of the others."""
    whole = {name: (name, ranks) for name, ranks in reversed(list(found)) if ranks}
    for name, _ in [key for key in found if not key[1] and key[0] in whole]:
        states = found.pop((name, ""))
        for rank, state in states.items():
            found[whole[name]].setdefault(rank, state)


def _label(states: Mapping[int, GroupState]) -> str:
    """The name by which the ranks call it that still have it."""
    return next((state.label for state in states.values() if state.ranks), next(iter(states.values())).label)


def _members(ranks: str, states: Mapping[int, GroupState], limit: int) -> tuple[int, ...]:
    """The members that the ranks tell, else, and where they claim more than ``limit`` members, those that were
    reached."""
    try:
        return tuple(expand(ranks, min(limit, MOST_RANKS))) or tuple(sorted(states))
    except BadData:
        return tuple(sorted(states))


def matches(group: Group) -> list[CollectiveMatch]:
    """The group's first operation that fits nowhere, and the first that some rank waits in: at most two."""
    by_seq: dict[int, dict[int, Issued]] = {}
    for rank, state in group.states.items():
        for issued in state.issued:
            by_seq.setdefault(issued.seq, {})[rank] = issued
    wrong = next((seq for seq in sorted(by_seq) if _is_mismatch(group, by_seq[seq])), None)
    waiting = [seq for seq in by_seq if any(each.is_pending for each in by_seq[seq].values())]
    pending = min(waiting, default=None)
    chosen = [wrong, pending] if pending != wrong else [wrong]
    return [_match(group, seq, by_seq[seq]) for seq in chosen if seq is not None]


def _is_mismatch(group: Group, issued: Mapping[int, Issued]) -> bool:
    """Asked of every number, so only of the ranks that issued it, not of all members that a group claims."""
    return _state(list(issued.values()), len(issued) == len(group.members), some_never=False).is_mismatch


def _match(group: Group, seq: int, issued: Mapping[int, Issued]) -> CollectiveMatch:
    never = tuple(rank for rank in group.members if rank in group.states and _before(group.states[rank], seq))
    return CollectiveMatch(
        group=group.label,
        name=group.name,
        members=group.members,
        seq=seq,
        state=_state(list(issued.values()), len(issued) == len(group.members), bool(never)),
        variants=tuple(_variants(issued)),
        pending=tuple(rank for rank in sorted(issued) if issued[rank].is_pending),
        completed=tuple(rank for rank in sorted(issued) if not issued[rank].is_pending),
        never_enqueued=never,
        missing=tuple(rank for rank in group.members if rank not in group.states),
    )


def _before(state: GroupState, seq: int) -> bool:
    """The rank has not come to that number, as far as its own operations tell: what it sends counts for others."""
    if state.issued:
        return max(each.seq for each in state.issued) < seq
    return (state.enqueued or 0) < seq


def _state(issued: Sequence[Issued], is_whole: bool, some_never: bool) -> MatchState:
    first, *others = issued
    for other in others:
        found = match(first, other)
        if found is not MatchState.FULLY_MATCHED:
            return found
    if is_whole and first.op in _UNEQUAL and _loses(issued):
        return MatchState.SIZE_OR_SYNTAX_MISMATCH
    if some_never:
        return MatchState.UNDECIDED
    if len({each.is_pending for each in issued}) > 1:
        return MatchState.COLLECTIVE_STATE_MISMATCH
    return MatchState.UNDECIDED if first.op in _UNEQUAL else MatchState.FULLY_MATCHED


def match(one: Issued, other: Issued) -> MatchState:
    """Compare whether two ranks issued the same thing under the same number."""
    if one.op != other.op:
        return MatchState.COLLECTIVE_TYPE_MISMATCH
    if one.op not in _ANY_INPUTS and _differ(one.sizes, other.sizes):
        return MatchState.SIZE_OR_SYNTAX_MISMATCH
    if one.op not in _ANY_OUTPUTS and _differ(one.output_sizes, other.output_sizes):
        return MatchState.SIZE_OR_SYNTAX_MISMATCH
    if one.op not in ("scatter", "broadcast") and _differ(one.dtypes, other.dtypes):
        return MatchState.COLLECTIVE_DTYPE_MISMATCH
    if one.op != "gather" and _differ(one.output_dtypes, other.output_dtypes):
        return MatchState.COLLECTIVE_DTYPE_MISMATCH
    return MatchState.FULLY_MATCHED


def _loses(issued: Sequence[Issued]) -> bool:
    """All ranks together send more or fewer elements than they receive; unlike the analyser, which leaves it open."""
    if not all(each.sizes and each.output_sizes for each in issued):
        return False
    sent = sum(prod(size) for each in issued for size in each.sizes)
    received = sum(prod(size) for each in issued for size in each.output_sizes)
    return sent != received


def _differ(one: Iterable[object], other: Iterable[object]) -> bool:
    """They differ; where a side says nothing (an older torch, a root of a scatter) there is nothing to compare."""
    left, right = tuple(one), tuple(other)
    return bool(left) and bool(right) and left != right


def _variants(issued: Mapping[int, Issued]) -> Iterator[Variant]:
    found: dict[str, list[int]] = {}
    for rank in sorted(issued):
        found.setdefault(issued_text(issued[rank]), []).append(rank)
    for text, ranks in sorted(found.items(), key=lambda item: (-len(item[1]), item[1])):
        yield Variant(text, tuple(ranks))


def issued_text(issued: Issued) -> str:
    """The operation in words: ``all_reduce float32[8, 2]``."""
    tensors = ", ".join(f"{dtype}{list(sizes)}" for dtype, sizes in zip(issued.dtypes, issued.sizes))
    return f"{issued.op} {tensors}".rstrip()


Edges = Mapping[int, frozenset[int]]
"""Rank → the ranks that it waits for; only ranks that wait for some are keys."""


def edges(reports: Sequence[RankReport], groups: Sequence[Group]) -> Edges:
    """Edges of all ranks whose main thread waits in an operation."""
    by_name: dict[str, list[Group]] = {}
    for group in groups:
        for name in {group.name, group.label}:
            by_name.setdefault(name, []).append(group)
    sets: dict[tuple[str, int], frozenset[int]] = {}
    found: dict[int, frozenset[int]] = {}
    there = _at_unnumbered(reports)
    waits = {report.rank: report.wait for report in reports if report.rank is not None and report.wait}
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
    other = waits.get(wait.peer) if wait and wait.peer is not None else None
    if not wait or not other or other.peer != report.rank:
        return False
    return {wait.op, other.op} == {"send", "recv"} and (wait.tag or 0) == (other.tag or 0)


def _targets(
    report: RankReport, groups: Mapping[str, Sequence[Group]], sets: dict[tuple[str, int], frozenset[int]]
) -> frozenset[int]:
    wait = report.wait
    if not wait:
        return frozenset()
    if wait.peer is not None:
        return frozenset((wait.peer,))
    if wait.from_any:
        return next((frozenset(each.members) for each in groups.get(wait.group, ())), frozenset())
    if wait.seq is None:
        return frozenset()
    for group in groups.get(wait.group, ()):
        if report.rank in group.states:
            key = (f"{group.name} {len(group.members)} {group.members[:1]}", wait.seq)
            if key not in sets and (len(sets) + 1) * len(group.members) > MOST_MEMBERS:
                return frozenset()
            if key not in sets:
                sets[key] = frozenset(rank for rank in group.members if not _has_come(group, rank, wait.seq))
            return sets[key]
    return frozenset()


def _at_unnumbered(reports: Sequence[RankReport]) -> Mapping[tuple[str, str], frozenset[int]]:
    """The ranks that wait in each operation without a number, by group and operation."""
    found: dict[tuple[str, str], set[int]] = {}
    for report in reports:
        if report.rank is not None and report.wait and report.wait.seq is None:
            found.setdefault((report.wait.group, report.wait.op), set()).add(report.rank)
    return {key: frozenset(ranks) for key, ranks in found.items()}


def _absent(
    report: RankReport, groups: Mapping[str, Sequence[Group]], there: Mapping[tuple[str, str], frozenset[int]]
) -> frozenset[int]:
    """The members of the group that do not wait in the same operation without a number."""
    wait = report.wait
    if not wait or wait.seq is not None or wait.from_any or not wait.group:
        return frozenset()
    members = next((group.members for group in groups.get(wait.group, ()) if report.rank in group.states), ())
    return frozenset(members) - there[wait.group, wait.op]


def _has_come(group: Group, rank: int, seq: int) -> bool:
    state = group.states.get(rank)
    if not state:
        return False
    if state.issued:
        return max(each.seq for each in state.issued) >= seq
    return (state.enqueued or 0) >= seq


def answering(reports: Sequence[RankReport]) -> frozenset[int]:
    """The ranks that others wait for an answer of, and that go on answering calls, whatever their programs wait for."""
    able = {report.rank for report in reports if report.answers}
    waits = (report.wait for report in reports)
    calls = (wait.peer for wait in waits if wait and wait.op in RPC_CALLS and wait.peer is not None)
    return frozenset(peer for peer in calls if peer in able)


def roots(waits: Edges, servers: Collection[int] = ()) -> tuple[int, ...]:
    """The ranks that others wait for and that wait for none themselves; ``servers``: also those."""
    different = {id(targets): targets for targets in waits.values()}  # the ranks of a group share one set
    return tuple(sorted(frozenset().union(*different.values()) - (waits.keys() - frozenset(servers))))


def deadlocked(waits: Edges, reports: Sequence[RankReport], servers: Collection[int] = ()) -> Edges:
    """The edges among ranks that cannot go on: each waits for one of them, and one that takes what any rank sends waits
    for nobody else. Who waits for an answer of a server waits for none of its program's waits."""
    by_rank = {report.rank: report.wait for report in reports if report.wait}
    stuck: dict[int, frozenset[int]] = {}
    for rank, targets in waits.items():
        wait = by_rank.get(rank)
        calls = wait and wait.op in RPC_CALLS
        stuck[rank] = targets - frozenset(servers) if calls and servers else targets
    free: set[int] = {-1}
    while free:
        free = {rank for rank, targets in stuck.items() if _may_go_on(by_rank.get(rank), targets, stuck)}
        stuck = {rank: targets for rank, targets in stuck.items() if rank not in free}
    return stuck


def _may_go_on(wait: CollectiveWait | None, targets: frozenset[int], stuck: Edges) -> bool:
    if wait and wait.from_any:
        return not targets <= stuck.keys()
    return targets.isdisjoint(stuck.keys())


def cycle(waits: Edges) -> tuple[int, ...]:
    """Ranks that wait for each other in a ring, each for the next; empty where nobody does."""
    done: set[int] = set()
    for start in sorted(waits):
        path: dict[int, None] = {}
        rank: int | None = start
        while rank is not None and rank in waits and rank not in done:
            if rank in path:
                ring = list(path)
                return tuple(ring[ring.index(rank) :])
            path[rank] = None
            rank = min((each for each in waits[rank] if each in waits), default=None)
        done.update(path)
    return ()
