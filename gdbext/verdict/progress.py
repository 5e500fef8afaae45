"""Stuck or slow: what changed in each thread between several looks at a process. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gdbext.model.finding import Finding
from gdbext.model.finding_kind import FindingKind
from gdbext.model.thread import RunState, ThreadReport
from gdbext.model.verdict import Verdict
from gdbext.verdict import phrasing

INNER = 7
"""Innermost frames that may differ in a thread that does not move: a wait that wakes up and begins again."""
BUSY_SHARE = 0.2
"""Share of the time on a processor from which a thread counts as working."""


@dataclass(frozen=True)
class Place:
    """Where a thread was at one look: return addresses outermost first, Python lines, processor seconds so far."""

    addresses: tuple[int, ...]
    python: tuple[tuple[str, int | None], ...]
    seconds: float | None


@dataclass(frozen=True)
class Progress:
    """One thread over all looks. ``kind``: "moved", "spinning" (works at one place), "stuck", "new" or "ended"."""

    tid: int
    kind: str


def compare(looks: Sequence[Mapping[int, Place]], elapsed: float) -> list[Progress]:
    """The progress of every thread that was seen; ``elapsed`` seconds lie between the first and the last look."""
    tids = dict.fromkeys(tid for look in looks for tid in look)
    return [Progress(tid, _kind([look.get(tid) for look in looks], elapsed)) for tid in tids]


def _kind(places: Sequence[Place | None], elapsed: float) -> str:
    if places[-1] is None:
        return "ended"
    seen = [place for place in places if place is not None]
    if len(seen) < len(places):
        return "new"
    if any(_moved(one, other) for one, other in zip(seen, seen[1:])):
        return "moved"
    first, last = seen[0].seconds, seen[-1].seconds
    if first is not None and last is not None and last - first > elapsed * BUSY_SHARE:
        return "spinning"
    return "stuck"


def _moved(one: Place, other: Place) -> bool:
    if one.python != other.python:
        return True
    common = 0
    for mine, theirs in zip(one.addresses, other.addresses):
        if mine != theirs:
            break
        common += 1
    return common + INNER < max(len(one.addresses), len(other.addresses))


def summary(progress: Sequence[Progress], threads: Sequence[ThreadReport], looks: int, elapsed: float) -> Finding:
    """One sentence about all threads that are no idle workers."""
    known = {thread.tid: thread for thread in threads}
    parts = []
    for kind, text in (
        ("moved", "moved on"), ("spinning", "used the processor without leaving one place"),
        ("stuck", "stayed where they were"), ("new", "appeared"), ("ended", "ended"),
    ):  # fmt: skip
        tids = [each.tid for each in progress if each.kind == kind]
        labels = [known[tid].label if tid in known else f"thread {tid}" for tid in tids
                  if tid not in known or known[tid].state is not RunState.IDLE]  # fmt: skip
        if labels:
            parts.append(f"{phrasing.listed(labels, 4)} {text}")
    told = "; ".join(parts) or "all threads are idle"
    stuck = tuple(each.tid for each in progress if each.kind == "stuck")
    return Finding(FindingKind.NOTE, f"In {looks} looks over {elapsed:.1f} s: {told}.", stuck)


def revised(verdict: Verdict, progress: Sequence[Progress], threads: Sequence[ThreadReport]) -> Verdict:
    """The verdict of the last look in the light of all: what moved on is slow, not stuck."""
    kinds = {each.tid: each.kind for each in progress}
    finding = verdict.finding
    involved = [kinds.get(tid) for tid in finding.threads]
    if not finding.kind.traits.movement_refutes_it or "moved" not in involved:
        return verdict
    inside = any(thread.dispatch for thread in threads if thread.tid in finding.threads)
    text = f"Slow, not stuck: the threads of this wait moved on between the looks. At the last one: {finding.summary}"
    kind = FindingKind.BUSY if inside else FindingKind.IDLE
    return replace(verdict, finding=replace(finding, kind=kind, summary=text, cycle=(), id=""))
