"""Collectives matched over ranks, by the rules of PyTorch's analyser.

Source: torch/distributed/flight_recorder/components/types.py (``Op.match``, ``Op.dtype_mismatch``) of 2.13.0. Unlike
there, a rank whose operation has completed while others wait is no mismatch by itself: a broadcast's root goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from gdbext.errors import BadData
from gdbext.model.job.job_report import CollectiveMatch, MatchState, Variant
from gdbext.model.job.rank_report import GroupState, Issued, RankReport
from gdbext.model.rank_set import expand
from gdbext.model.record import Record

_ANY_INPUTS = ("all_to_all", "scatter")
_ANY_OUTPUTS = ("all_to_all", "gather")
_UNEQUAL = ("all_to_all", "alltoall_base", "all_to_all_single")
"""Operations whose tensors differ from rank to rank."""


class Group(Record):
    """One group over all ranks that were reached."""

    name: str
    label: str
    members: tuple[int, ...]
    states: Mapping[int, GroupState]
    """By rank."""


def groups_of(reports: Sequence[RankReport]) -> list[Group]:
    """All groups, the largest first."""
    found: dict[tuple[str, str], dict[int, GroupState]] = {}
    for report in reports:
        if report.rank is not None:
            for state in report.groups:
                found.setdefault((state.name, state.ranks), {})[report.rank] = state
    _join_destroyed(found)
    groups = [Group(name, _label(states), _members(ranks, states), states) for (name, ranks), states in found.items()]
    return sorted(groups, key=lambda group: (-len(group.members), group.name))


def _join_destroyed(found: dict[tuple[str, str], dict[int, GroupState]]) -> None:
    """A rank that has destroyed its group still has the recorded operations, but no members: those of the others."""
    whole = {name: (name, ranks) for name, ranks in reversed(list(found)) if ranks}
    for name, _ in [key for key in found if not key[1] and key[0] in whole]:
        states = found.pop((name, ""))
        for rank, state in states.items():
            found[whole[name]].setdefault(rank, state)


def _label(states: Mapping[int, GroupState]) -> str:
    """What the ranks call it that still have it."""
    return next((state.label for state in states.values() if state.ranks), next(iter(states.values())).label)


def _members(ranks: str, states: Mapping[int, GroupState]) -> tuple[int, ...]:
    try:
        return tuple(expand(ranks)) or tuple(sorted(states))
    except BadData:
        return tuple(sorted(states))


def matches(group: Group) -> list[CollectiveMatch]:
    """The group's first operation that fits nowhere, and the first that some rank waits in: at most two."""
    by_seq: dict[int, dict[int, Issued]] = {}
    for rank, state in group.states.items():
        for issued in state.issued:
            by_seq.setdefault(issued.seq, {})[rank] = issued
    all_of_them = [_match(group, seq, by_seq[seq]) for seq in sorted(by_seq)]
    wrong = next((each for each in all_of_them if each.state.is_mismatch), None)
    pending = next((each for each in all_of_them if each.waiting), None)
    return [each for each in (wrong, pending if pending is not wrong else None) if each is not None]


def _match(group: Group, seq: int, issued: Mapping[int, Issued]) -> CollectiveMatch:
    never = tuple(rank for rank in group.members if rank in group.states and _before(group.states[rank], seq))
    return CollectiveMatch(
        group=group.label,
        name=group.name,
        members=group.members,
        seq=seq,
        state=_state(list(issued.values()), len(issued) == len(group.members), bool(never)),
        variants=tuple(_variants(issued)),
        waiting=tuple(rank for rank in sorted(issued) if issued[rank].is_pending),
        completed=tuple(rank for rank in sorted(issued) if not issued[rank].is_pending),
        never=never,
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
    """Whether two ranks issued the same thing under the same number."""
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
    """``all_reduce float32[8, 2]``."""
    tensors = ", ".join(f"{dtype}{list(sizes)}" for dtype, sizes in zip(issued.dtypes, issued.sizes))
    return f"{issued.op} {tensors}".rstrip()
