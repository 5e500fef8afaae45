"""Stuck or slow: what changed in each thread between several samples of a process. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gdbext.model.finding import Finding
from gdbext.model.finding_kind import FindingKind
from gdbext.model.threads.thread_progress import Progress, ThreadProgress
from gdbext.model.threads.thread_report import RunState, ThreadReport
from gdbext.model.verdict import Verdict
from gdbext.verdict import phrasing

INNER = 7
"""Innermost frames that may differ in a thread that does not move: a wait that wakes up and begins again."""
BUSY_SHARE = 0.2
"""Share of the time that the process ran from which a thread on a processor counts as working."""


_TEXTS = {
    Progress.MOVED: "moved on",
    Progress.SPINNING: "used the processor without leaving one place",
    Progress.STUCK: "stayed where they were",
    Progress.NEW: "appeared",
    Progress.ENDED: "ended",
}


class Place(NamedTuple):
    """Where a thread was in one sample: return addresses outermost first, Python lines, processor seconds so far."""

    addresses: tuple[int, ...]
    python: tuple[tuple[str, int | None], ...]
    seconds: float | None


def compare(samples: Sequence[Mapping[int, Place]], ran: float) -> list[ThreadProgress]:
    """The progress of every thread that was seen; the process ran for at least ``ran`` seconds between the samples."""
    tids = dict.fromkeys(tid for sample in samples for tid in sample)
    return [ThreadProgress(tid, _progress([sample.get(tid) for sample in samples], ran)) for tid in tids]


def _progress(places: Sequence[Place | None], ran: float) -> Progress:
    if places[-1] is None:
        return Progress.ENDED
    seen = [place for place in places if place is not None]
    if len(seen) < len(places):
        return Progress.NEW
    if any(_moved(one, other) for one, other in zip(seen, seen[1:])):
        return Progress.MOVED
    first, last = seen[0].seconds, seen[-1].seconds
    if first is not None and last is not None and last - first > ran * BUSY_SHARE:
        return Progress.SPINNING
    return Progress.STUCK


def _moved(one: Place, other: Place) -> bool:
    if one.python != other.python:
        return True
    common = 0
    for mine, theirs in zip(one.addresses, other.addresses):
        if mine != theirs:
            break
        common += 1
    return common + INNER < max(len(one.addresses), len(other.addresses))


def summary(found: Sequence[ThreadProgress], threads: Sequence[ThreadReport], samples: int, elapsed: float) -> Finding:
    """One sentence about all threads that are not idle workers."""
    known = {thread.tid: thread for thread in threads}
    idle = {thread.tid for thread in threads if thread.state is RunState.IDLE}
    parts = []
    for progress, text in _TEXTS.items():
        tids = [each.tid for each in found if each.progress is progress and each.tid not in idle]
        labels = [known[tid].label if tid in known else f"thread {tid}" for tid in tids]
        if labels:
            parts.append(f"{phrasing.listed(labels, 4)} {text}")
    text = f"In {samples} samples over {elapsed:.1f} s: {'; '.join(parts) or 'all threads are idle'}."
    stuck = tuple(each.tid for each in found if each.progress is Progress.STUCK)
    return Finding(FindingKind.NOTE, text, stuck, id="samples")


def revised(verdict: Verdict, found: Sequence[ThreadProgress], threads: Sequence[ThreadReport]) -> Verdict:
    """The verdict on the last sample in the light of all: what moved on is slow, not stuck."""
    moved = {each.tid for each in found if each.progress is Progress.MOVED}
    finding = verdict.finding
    if not finding.kind.traits.movement_refutes_it or moved.isdisjoint(finding.threads):
        return verdict
    inside = any(thread.dispatch for thread in threads if thread.tid in finding.threads)
    text = f"Slow, not stuck: the threads of this wait moved on between the samples. In the last one: {finding.summary}"
    kind = FindingKind.BUSY if inside else FindingKind.IDLE
    return verdict._replace(finding=finding._replace(kind=kind, summary=text, cycle=(), id=""))
