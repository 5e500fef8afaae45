"""Matches collectives over ranks, by the rules of PyTorch's analyzer, and finds which rank waits for which.

Source: torch/distributed/flight_recorder/components/types.py (``Op.match``, ``Op.dtype_mismatch``) of 2.13.0. Unlike
there, a rank that completed an operation in which others wait is no mismatch: a broadcast's root need not wait.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import NamedTuple

from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.engine.rank_sets import MOST_RANKS, expand
from gdbext.errors import BadData
from gdbext.tools.ranks.job_report import CollectiveMatch, GroupState, Issued, MatchState, RankReport, Variant
from gdbext.torch.torch_symbol import RPC_CALLS

_UNEQUAL = ("all_to_all", "alltoall_base", "all_to_all_single")
"""Operations whose tensors differ from rank to rank."""
MOST_MEMBERS = MOST_RANKS
"""Members of all groups together that are listed one by one, at most."""


class Group(NamedTuple):
    """One process group with its states on all ranks that have a report."""

    name: str
    label: str
    members: tuple[int, ...]
    states: Mapping[int, GroupState]
    """The states of the group, by rank."""


def groups_of(reports: Sequence[RankReport]) -> list[Group]:
    """All groups of the reports, each over all of its ranks, the largest first."""
    states_by_group: dict[tuple[str, str], dict[int, GroupState]] = {}  # (name, members as text) → rank → state
    for report in reports:
        if report.rank is not None:
            for state in report.groups:
                states_by_group.setdefault((state.name, state.ranks), {})[report.rank] = state
    # A rank that destroyed its group still has the recorded operations, but no members: use those of the other ranks.
    with_members = {name: (name, ranks) for name, ranks in reversed(list(states_by_group)) if ranks}
    for name, _ in [key for key in states_by_group if not key[1] and key[0] in with_members]:
        for rank, state in states_by_group.pop((name, "")).items():
            states_by_group[with_members[name]].setdefault(rank, state)
    groups, members_left = [], MOST_MEMBERS
    for (name, ranks), states in states_by_group.items():
        try:
            members = tuple(expand(ranks, min(members_left, MOST_RANKS))) or tuple(sorted(states))
        except BadData:  # no set of ranks, or too many: only those with a report
            members = tuple(sorted(states))
        members_left -= len(members)
        label = next((state.label for state in states.values() if state.ranks), next(iter(states.values())).label)
        groups.append(Group(name, label, members, states))
    return sorted(groups, key=lambda group: (-len(group.members), group.name))


def matches(group: Group) -> list[CollectiveMatch]:
    """The group's first mismatched operation, and the first that a rank waits in: at most two."""
    by_seq: dict[int, dict[int, Issued]] = {}  # sequence number → rank → operation
    for rank, state in group.states.items():
        for issued in state.issued:
            by_seq.setdefault(issued.seq, {})[rank] = issued
    # For every number, only the ranks that issued it are compared, not all members that a group claims.
    wrong = next((seq for seq in sorted(by_seq) if _match_state(group, by_seq[seq], False).is_mismatch), None)
    pending = min((seq for seq in by_seq if any(op.is_pending for op in by_seq[seq].values())), default=None)
    chosen = dict.fromkeys(seq for seq in (wrong, pending) if seq is not None)
    return [_match(group, seq, by_seq[seq]) for seq in chosen]


def _match(group: Group, seq: int, issued: Mapping[int, Issued]) -> CollectiveMatch:
    """The report on operation number ``seq`` of a group. ``issued``: rank → its operation with that number."""
    ranks_by_text: dict[str, list[int]] = {}  # ``all_reduce float32[8, 2]`` → ranks
    for rank, op in sorted(issued.items()):
        tensors = ", ".join(f"{dtype}{list(sizes)}" for dtype, sizes in zip(op.dtypes, op.sizes))
        ranks_by_text.setdefault(f"{op.op} {tensors}".rstrip(), []).append(rank)
    variants = sorted(ranks_by_text.items(), key=lambda item: (-len(item[1]), item[1]))
    reached = [rank for rank in group.members if rank in group.states]
    never = tuple(rank for rank in reached if not _has_issued(group, rank, seq))
    return CollectiveMatch(
        group=group.label,
        name=group.name,
        members=group.members,
        seq=seq,
        state=_match_state(group, issued, bool(never)),
        variants=tuple(Variant(text, tuple(ranks)) for text, ranks in variants),
        pending=tuple(rank for rank in sorted(issued) if issued[rank].is_pending),
        completed=tuple(rank for rank in sorted(issued) if not issued[rank].is_pending),
        never_enqueued=never,
        missing=tuple(rank for rank in group.members if rank not in group.states),
    )


def _has_issued(group: Group, rank: int, seq: int) -> bool:
    """True if the rank has reached sequence number ``seq``: by its recorded operations if there are any, since the
    group's own counter includes sends and receives."""
    state = group.states.get(rank)
    if not state:
        return False
    return (max(op.seq for op in state.issued) if state.issued else state.enqueued or 0) >= seq


def _match_state(group: Group, issued: Mapping[int, Issued], some_never: bool) -> MatchState:
    """Compare the operations that ranks issued under one number (``issued``, by rank). ``some_never``: a member with a
    report has not issued one."""
    first, *others = issued.values()
    states = (_compare(first, other) for other in others)
    mismatch = next((state for state in states if state is not MatchState.FULLY_MATCHED), None)
    if mismatch:
        return mismatch
    is_unequal = first.op in _UNEQUAL
    if is_unequal and len(issued) == len(group.members) and all(op.sizes and op.output_sizes for op in issued.values()):
        # Unlike the analyzer, which leaves this open: all ranks together must receive as many elements as they send.
        sent = sum(prod(size) for op in issued.values() for size in op.sizes)
        if sent != sum(prod(size) for op in issued.values() for size in op.output_sizes):
            return MatchState.SIZE_OR_SYNTAX_MISMATCH
    if some_never:
        return MatchState.UNDECIDED
    if len({op.is_pending for op in issued.values()}) > 1:
        return MatchState.COLLECTIVE_STATE_MISMATCH
    return MatchState.UNDECIDED if is_unequal else MatchState.FULLY_MATCHED


def _compare(left: Issued, right: Issued) -> MatchState:
    """Compare what two ranks issued under the same number.

    Empty sizes or types (an older torch, a scatter's root) are not compared.
    """
    if left.op != right.op:
        return MatchState.COLLECTIVE_TYPE_MISMATCH
    size, dtype = MatchState.SIZE_OR_SYNTAX_MISMATCH, MatchState.COLLECTIVE_DTYPE_MISMATCH
    for exempt, left_value, right_value, mismatch in (
        (("all_to_all", "scatter"), left.sizes, right.sizes, size),
        (("all_to_all", "gather"), left.output_sizes, right.output_sizes, size),
        (("scatter", "broadcast"), left.dtypes, right.dtypes, dtype),
        (("gather",), left.output_dtypes, right.output_dtypes, dtype),
    ):
        if left.op not in exempt and left_value and right_value and left_value != right_value:
            return mismatch
    return MatchState.FULLY_MATCHED


Edges = Mapping[int, frozenset[int]]
"""Rank → the ranks that it waits for; only ranks that wait for some are keys."""


def edges(reports: Sequence[RankReport], groups: Sequence[Group]) -> Edges:
    """The edges of all ranks that wait in an operation: a collective waits for all members that have not issued it, a
    send or recv for its other end."""
    groups_by_name: dict[str, list[Group]] = {}
    for group in groups:
        for name in {group.name, group.label}:
            groups_by_name.setdefault(name, []).append(group)
    waits = {report.rank: report.wait for report in reports if report.rank is not None and report.wait}
    unnumbered: dict[tuple[str, str], set[int]] = {}  # (group, operation) → ranks that wait in it
    for rank, wait in waits.items():
        if wait.seq is None:
            unnumbered.setdefault((wait.group, wait.op), set()).add(rank)
    late_by_operation: dict[tuple[str, int], frozenset[int]] = {}
    edges_by_rank: dict[int, frozenset[int]] = _edges_of_owed(waits)
    edges_by_rank.update(_edges_of_rooted(reports, waits))
    offers = _offers(waits)
    for rank, wait in waits.items():
        if wait.is_store or _transfer_is_met(rank, waits, offers):
            continue
        own_groups = groups_by_name.get(wait.group, ())
        targets = _targets(rank, wait, own_groups, late_by_operation)
        if not targets and wait.seq is None and not wait.from_any and wait.group:
            members = next((group.members for group in own_groups if rank in group.states), ())
            targets = frozenset(members) - unnumbered[wait.group, wait.op]
        targets -= {rank}
        if targets:
            edges_by_rank[rank] = targets
    return edges_by_rank


def _edges_of_owed(waits: Mapping[int, CollectiveWait]) -> dict[int, frozenset[int]]:
    """The edges of ranks that wait for certain ranks to come: at the store, or in a collective of MPI. All that wait in
    the same one have come, and share one set."""
    waiting: dict[tuple[str, ...], list[int]] = {}  # (operation, group, key, ranks that have to come) → ranks there
    for rank, wait in waits.items():
        if wait.owed_by and not wait.from_any:
            op = "" if wait.is_store else wait.op
            waiting.setdefault((op, wait.group, wait.key, wait.owed_by), []).append(rank)
    edges_by_rank: dict[int, frozenset[int]] = {}
    left = MOST_MEMBERS
    for (*_, owed_by), ranks in waiting.items():
        targets = _expanded(owed_by, left) - set(ranks)
        left -= len(targets)
        edges_by_rank.update(dict.fromkeys(ranks, targets) if targets else {})
    return edges_by_rank


def _expanded(ranks: str, limit: int = MOST_MEMBERS) -> frozenset[int]:
    """The ranks of a set's text; empty if there are more than ``limit``, or it is no such text."""
    try:
        return frozenset(expand(ranks, limit))
    except BadData:
        return frozenset()


def _edges_of_rooted(reports: Sequence[RankReport], waits: Mapping[int, CollectiveWait]) -> dict[int, frozenset[int]]:
    """The edges of ranks in a collective of MPI with a root. Its other ranks may leave early, so that one is late only
    if it is the only one that waits nowhere, or the root while all others wait."""
    idle = [report.rank for report in reports if report.rank is not None and not report.wait]
    edges_by_rank = {}
    for rank, wait in waits.items():
        if wait.root is None:
            continue
        root = waits.get(wait.root)
        if len(idle) == 1:
            edges_by_rank[rank] = frozenset(idle)
        elif not idle and root and (root.op, root.group) != (wait.op, wait.group):
            edges_by_rank[rank] = frozenset((wait.root,))
    return edges_by_rank


def _offers(waits: Mapping[int, CollectiveWait]) -> dict[tuple[int, str], set[int | None]]:
    """(rank, communicator) → the tags of what others are sending it by MPI, None for an unknown one."""
    offers: dict[tuple[int, str], set[int | None]] = {}
    for wait in waits.values():
        if wait.is_mpi and wait.peer is not None and wait.transfer == "send":
            offers.setdefault((wait.peer, wait.group), set()).add(wait.tag)
    return offers


def _transfer_is_met(
    rank: int, waits: Mapping[int, CollectiveWait], offers: Mapping[tuple[int, str], Collection[int | None]]
) -> bool:
    """True if the rank's send has met the matching recv, or the reverse, so that neither waits for the other rank: the
    transfer itself does not finish. ``waits``: by rank; ``offers``: of MPI's sends, see _offers."""
    wait = waits[rank]
    other = waits.get(wait.peer) if wait.peer is not None else None
    if wait.is_mpi and wait.from_any:
        tags = offers.get((rank, wait.group), ())
        return bool(tags) and (wait.tag is None or None in tags or wait.tag in tags)
    if not other or {wait.transfer, other.transfer} != {"send", "recv"}:
        return False
    if wait.is_mpi:
        is_for_us = other.group == wait.group and (other.peer == rank or other.from_any)
        return is_for_us and (wait.tag == other.tag or None in (wait.tag, other.tag))  # None: any tag, or unknown
    return other.peer == rank and (wait.tag or 0) == (other.tag or 0)


def _targets(
    rank: int, wait: CollectiveWait, groups: Sequence[Group], late_by_operation: dict[tuple[str, int], frozenset[int]]
) -> frozenset[int]:
    """The ranks that ``rank`` waits for. Ranks of one group share the set of members that did not issue the operation;
    ``late_by_operation`` caches it by (group, sequence number), up to MOST_MEMBERS members."""
    if wait.peer is not None:
        return frozenset((wait.peer,))
    if wait.from_any and wait.is_mpi:
        return _expanded(wait.owed_by)
    if wait.from_any:
        return next((frozenset(group.members) for group in groups), frozenset())
    group = next((group for group in groups if rank in group.states), None)
    if wait.seq is None or not group:
        return frozenset()
    key = (f"{group.name} {len(group.members)} {group.members[:1]}", wait.seq)
    if key not in late_by_operation:
        if (len(late_by_operation) + 1) * len(group.members) > MOST_MEMBERS:
            return frozenset()
        late_by_operation[key] = frozenset(peer for peer in group.members if not _has_issued(group, peer, wait.seq))
    return late_by_operation[key]


def answering(reports: Sequence[RankReport]) -> frozenset[int]:
    """The ranks that others wait for to answer a call, and that still answer calls, whatever else they wait for."""
    servers = {report.rank for report in reports if report.answers}
    waits = (report.wait for report in reports)
    calls = (wait.peer for wait in waits if wait and wait.op in RPC_CALLS and wait.peer is not None)
    return frozenset(peer for peer in calls if peer in servers)


def roots(waits: Edges, servers: Collection[int] = ()) -> tuple[int, ...]:
    """The ranks that others wait for and that wait for none themselves, or that are among ``servers``."""
    different = {id(targets): targets for targets in waits.values()}  # the ranks of a group share one set
    return tuple(sorted(frozenset().union(*different.values()) - (waits.keys() - frozenset(servers))))


def deadlocked(waits: Edges, reports: Sequence[RankReport], servers: Collection[int] = ()) -> Edges:
    """The edges among ranks that cannot proceed: each waits for one of them, and one that receives from any rank waits
    only for them. A rank that waits for a server's answer does not depend on the server's own waits."""
    by_rank = {report.rank: report.wait for report in reports if report.wait}

    def may_proceed(rank: int, targets: frozenset[int], stuck: Edges) -> bool:
        """True if the rank waits for none of the ``stuck`` ones, or from any rank and not all are stuck."""
        wait = by_rank.get(rank)
        if wait and wait.from_any:
            return not targets <= stuck.keys()
        return targets.isdisjoint(stuck.keys())

    stuck: dict[int, frozenset[int]] = {}
    for rank, targets in waits.items():
        wait = by_rank.get(rank)
        stuck[rank] = targets - frozenset(servers) if wait and wait.op in RPC_CALLS else targets
    count = -1
    while count != len(stuck):
        count = len(stuck)
        stuck = {rank: targets for rank, targets in stuck.items() if not may_proceed(rank, targets, stuck)}
    return stuck


def cycle(waits: Edges) -> tuple[int, ...]:
    """Ranks that wait for each other in a ring, each for the next; empty if there is none."""
    done: set[int] = set()
    for start in sorted(waits):
        path: dict[int, None] = {}
        rank: int | None = start
        while rank is not None and rank in waits and rank not in done:
            if rank in path:
                ring = list(path)
                return tuple(ring[ring.index(rank) :])
            path[rank] = None
            rank = min((target for target in waits[rank] if target in waits), default=None)
        done.update(path)
    return ()
