"""Stuck or slow: what changed in each thread between several samples of a process. Pure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.kinds.state import BUSY, IDLE
from gdbext.diagnosis.report.finding import NOTE, Finding, Verdict
from gdbext.diagnosis.report.thread_report import Progress, RunState, ThreadProgress, ThreadReport
from gdbext.diagnosis.verdict.clauses import listed
from gdbext.diagnosis.verdict.judgement import Judgement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set
    from typing import Optional

    Done = tuple[Optional[int], ...]
    """The work of a thread between two samples while no debugger stopped it: nanoseconds on a CPU, context switches,
    bytes, page faults; None if unknown."""

_INNER = 7
"""Innermost frames that may differ in a thread that does not move: a wait that wakes up and begins again."""


_TEXTS = {
    Progress.MOVED: "moved on",
    Progress.SPINNING: "used the CPU without leaving one place",
    Progress.SAME_PLACE: "seen at the same place each time (it may have moved in between)",
    Progress.STUCK: "made no progress",
    Progress.NEW: "appeared",
    Progress.ENDED: "ended",
}
_COUNTERS = ("processor time", "context switches", "bytes read or written", "page faults")
"""The counters of a thread, in the order of Done; the first two also change in a wait that wakes up and begins
again."""


class SamplePlace(NamedTuple):
    """The place of a thread in one sample: return addresses outermost first, Python lines, the innermost Python frame
    and its instruction, and the functions of the innermost frames of a thread that runs, innermost first."""

    addresses: tuple[int, ...]
    python: tuple[tuple[str, int | None], ...]
    instruction: tuple[int, int] | None = None
    functions: tuple[str, ...] = ()


def compare(
    samples: Sequence[Mapping[int, SamplePlace]],
    done: Sequence[Mapping[int, Done]],
    ran: float,
    waking: Set[int] = frozenset(),
) -> list[ThreadProgress]:
    """The progress of every thread that was seen; the process ran for at least ``ran`` seconds between the samples.

    ``done``: of each interval, thread id → its work; ``waking``: threads whose wait wakes up and begins again by
    itself, as that for the GIL does.
    """
    progress = []
    for tid in dict.fromkeys(tid for sample in samples for tid in sample):
        places = [sample[tid] for sample in samples if tid in sample]
        if tid not in samples[-1]:
            progress.append(ThreadProgress(tid, Progress.ENDED))
        elif len(places) < len(samples):
            progress.append(ThreadProgress(tid, Progress.NEW))
        else:
            progress.append(_progress(tid, places, [each.get(tid, ()) for each in done], ran, tid in waking))
    return progress


def _progress(tid: int, places: Sequence[SamplePlace], done: Sequence[Done], ran: float, wakes: bool) -> ThreadProgress:
    pairs = list(zip(places, places[1:]))
    counters = [name for at, name in enumerate(_COUNTERS) if any(len(work) > at and work[at] for work in done)]
    common = [_common_frames(before.addresses, after.addresses) for before, after in pairs]
    for (before, after), count in zip(pairs, common):
        deepest = max(len(before.addresses), len(after.addresses))
        if before.python != after.python or count + _INNER < deepest:
            return ThreadProgress(tid, Progress.MOVED, ("its frames", *counters))
    worked = sum((work[0] or 0) for work in done if work)
    # A thread that had the CPU for a fifth of the time counts as working.
    if worked > ran * 0.2 * 1e9 or (worked and all(place.functions for place in places)):
        # The innermost function that it was in each time is the one that the last common frame called.
        last = places[-1]
        level = max(len(last.addresses) - min(common, default=0) - 1, 0)
        place = last.functions[level] if level < len(last.functions) else ""
        return ThreadProgress(tid, Progress.SPINNING, tuple(counters), place)
    if any(before.instruction != after.instruction for before, after in pairs):
        return ThreadProgress(tid, Progress.MOVED, ("its Python instruction", *counters))
    effects = tuple(name for name in counters if not wakes or name not in _COUNTERS[:2])
    return ThreadProgress(tid, Progress.SAME_PLACE if effects else Progress.STUCK, effects)


def _common_frames(before: Sequence[int], after: Sequence[int]) -> int:
    """The number of outermost frames that two stacks have in common."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after))
    return sum(1 for _ in same)


def with_calls(found: Sequence[ThreadProgress], threads: Sequence[ThreadReport], calls: int) -> list[ThreadProgress]:
    """The progress given that operators were called ``calls`` times meanwhile: a thread that calls operators leaves its
    place, though it was found there each time. Its caller is known if only one thread can have called them."""
    tids = {thread.tid for thread in threads}
    may_have_called = (Progress.MOVED, Progress.NEW, Progress.SAME_PLACE)
    callers = [each.tid for each in found if each.progress is Progress.SPINNING and each.tid in tids]
    if not calls or not callers:
        return list(found)
    proven = len(callers) == 1 and not any(each.progress in may_have_called and each.tid in tids for each in found)
    became = Progress.MOVED if proven else Progress.SAME_PLACE
    moved = ("operator calls",) if proven else ()
    return [
        each._replace(progress=became, moved=(*each.moved, *moved), place="") if each.tid in callers else each
        for each in found
    ]


def with_collections(found: Sequence[ThreadProgress], collector: int | None) -> list[ThreadProgress]:
    """The progress if thread ``collector`` collected garbage each time, and not in the same run: it moved in
    between."""
    return [
        each._replace(progress=Progress.MOVED, moved=(*each.moved, "collections of garbage"), place="")
        if each.tid == collector and each.progress is Progress.SPINNING
        else each
        for each in found
    ]


def agreeing(judgement: Judgement, found: Sequence[ThreadProgress], threads: Sequence[ThreadReport]) -> Judgement:
    """The judgement on the last sample in the light of all: without the findings that movement refutes."""
    verdict = revised(judgement.verdict, found, threads)
    findings = tuple(finding for finding in judgement.findings if not _is_refuted(finding, found))
    strongest = next((finding for finding in findings if finding.kind is not NOTE), None)
    if verdict is not judgement.verdict and strongest:
        verdict = Verdict.of(strongest)
    return Judgement(findings, verdict)


def goes_on(verdict: Verdict, calls: int, seconds: float) -> Verdict:
    """The verdict; an idle process in which operators are called is busy."""
    if not calls or verdict.kind is not IDLE:
        return verdict
    text = f"Operators are called ({_rate(calls, seconds)} a second); in the last sample no thread was inside one."
    return Verdict.of(verdict.finding._replace(kind=BUSY, summary=text))


def _rate(calls: int, seconds: float) -> str:
    return f"{calls / seconds if seconds > 0 else 0.0:,.0f}"


def dispatches(calls: int, seconds: float) -> Finding:
    """The dispatches that a probe counted between the samples."""
    text = "No operator was called meanwhile."
    if calls:
        text = f"Dispatches continue: {_rate(calls, seconds)} operator calls a second."
    return Finding(NOTE, text, (), id="dispatches")


def summary(found: Sequence[ThreadProgress], threads: Sequence[ThreadReport], samples: int, elapsed: float) -> Finding:
    """One sentence about all threads that are not idle workers."""
    reports = {thread.tid: thread for thread in threads}
    idle = {thread.tid for thread in threads if thread.state is RunState.IDLE}
    parts = []
    for progress, text in _TEXTS.items():
        tids = [each.tid for each in found if each.progress is progress and each.tid not in idle]
        if progress is Progress.STUCK:
            ready = [tid for tid in tids if tid in reports and reports[tid].state is RunState.RUNNING]
            tids = [tid for tid in tids if tid not in ready]
            if ready:
                names = listed([reports[tid].label for tid in ready], 4)
                parts.append(f"{names} {'was' if len(ready) == 1 else 'were'} ready to run but not scheduled")
        if tids:
            labels = [reports[tid].label if tid in reports else f"thread {tid}" for tid in tids]
            parts.append(f"{listed(labels, 4)} {text}")
    parts += [
        f"{reports[each.tid].label} spins in {each.place}" for each in found if each.place and each.tid in reports
    ]
    text = f"In {samples} samples over {elapsed:.1f} s: {'; '.join(parts) or 'all threads are idle'}."
    stuck = tuple(each.tid for each in found if each.progress is Progress.STUCK)
    return Finding(NOTE, text, stuck, id="samples")


def revised(verdict: Verdict, found: Sequence[ThreadProgress], threads: Sequence[ThreadReport]) -> Verdict:
    """The verdict on the last sample in the light of all: a wait whose threads moved is slow, not stuck."""
    finding = verdict.finding
    if not _is_refuted(finding, found):
        return verdict
    inside = any(thread.dispatch for thread in threads if thread.tid in finding.threads)
    text = f"Not stuck: the threads of this wait moved on between the samples. In the last one: {finding.summary}"
    kind = BUSY if inside else IDLE
    return Verdict.of(finding._replace(kind=kind, summary=text, cycle=(), id=""))


def _is_refuted(finding: Finding, found: Sequence[ThreadProgress]) -> bool:
    moved = {each.tid for each in found if each.progress is Progress.MOVED}
    return finding.kind.movement_refutes_it and not moved.isdisjoint(finding.threads)
