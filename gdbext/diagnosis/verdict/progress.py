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

    Work = tuple[Optional[int], ...]
    """Growth of each of _COUNTERS between two samples, while no debugger stopped the thread; None if unknown."""

_INNER = 7
"""Innermost frames that may differ in a thread that does not move: a wait that wakes up and begins again."""


_TEXTS = {
    Progress.MOVED: "made progress",
    Progress.SPINNING: "used the CPU without leaving one function",
    Progress.SAME_PLACE: "stayed at the same place in every sample (progress in between is possible)",
    Progress.STUCK: "made no progress",
    Progress.NEW: "started",
    Progress.ENDED: "exited",
}
_WAKING_COUNTERS = ("processor time", "context switches")  # they also change in a wait that wakes up and begins again
_COUNTERS = (*_WAKING_COUNTERS, "bytes read or written", "page faults")


class SamplePlace(NamedTuple):
    """The place of a thread in one sample."""

    addresses: tuple[int, ...]
    """Return addresses, outermost first."""
    python: tuple[tuple[str, int | None], ...]
    """(function, line) of the Python frames, innermost first."""
    instruction: tuple[int, int] | None = None
    """The innermost Python frame and its instruction."""
    functions: tuple[str, ...] = ()
    """Functions of the innermost native frames of a thread that runs, innermost first."""


def compare(
    samples: Sequence[Mapping[int, SamplePlace]],
    work: Sequence[Mapping[int, Work]],
    seconds: float,
    waking: Set[int] = frozenset(),
) -> list[ThreadProgress]:
    """The progress of each thread in the ``samples`` (tid → place), between which the process ran for ``seconds`` or
    longer. ``work``: per interval, tid → its work; ``waking``: tids whose wait times out and begins again, as the
    GIL's does."""
    progress = []
    for tid in dict.fromkeys(tid for sample in samples for tid in sample):
        places = [sample[tid] for sample in samples if tid in sample]
        if tid not in samples[-1]:
            progress.append(ThreadProgress(tid, Progress.ENDED))
        elif len(places) < len(samples):
            progress.append(ThreadProgress(tid, Progress.NEW))
        else:
            works = [interval.get(tid, ()) for interval in work]
            progress.append(_thread_progress(tid, places, works, seconds, tid in waking))
    return progress


def _thread_progress(
    tid: int, places: Sequence[SamplePlace], works: Sequence[Work], seconds: float, wakes: bool
) -> ThreadProgress:
    """The progress of a thread that is in all samples; see compare()."""
    pairs = list(zip(places, places[1:]))
    counters = [name for at, name in enumerate(_COUNTERS) if any(len(work) > at and work[at] for work in works)]
    common = []  # for each pair, the number of equal outermost frames
    for before, after in pairs:
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before.addresses, after.addresses))
        common.append(sum(1 for _ in same))
        deepest = max(len(before.addresses), len(after.addresses))
        if before.python != after.python or common[-1] + _INNER < deepest:
            return ThreadProgress(tid, Progress.MOVED, ("its frames", *counters))
    on_cpu = sum((work[0] or 0) for work in works if work)
    # A thread that had the CPU for a fifth of the time counts as working.
    if on_cpu > seconds * 0.2 * 1e9 or (on_cpu and all(place.functions for place in places)):
        # The innermost function that it was in each time is the one that the last common frame called.
        last = places[-1]
        level = max(len(last.addresses) - min(common, default=0) - 1, 0)
        place = last.functions[level] if level < len(last.functions) else ""
        return ThreadProgress(tid, Progress.SPINNING, tuple(counters), place)
    if any(before.instruction != after.instruction for before, after in pairs):
        return ThreadProgress(tid, Progress.MOVED, ("its Python instruction", *counters))
    effects = tuple(name for name in counters if not wakes or name not in _WAKING_COUNTERS)
    return ThreadProgress(tid, Progress.SAME_PLACE if effects else Progress.STUCK, effects)


def with_operator_calls(
    progress: Sequence[ThreadProgress], threads: Sequence[ThreadReport], calls: int
) -> list[ThreadProgress]:
    """The progress given that operators were called ``calls`` times meanwhile: a thread that calls operators leaves its
    place, though it was found there each time. Its caller is known if only one thread can have called them."""
    tids = {thread.tid for thread in threads}
    callers = [row.tid for row in progress if row.progress is Progress.SPINNING and row.tid in tids]
    if not calls or not callers:
        return list(progress)
    may_have_called = (Progress.MOVED, Progress.NEW, Progress.SAME_PLACE)
    proven = len(callers) == 1 and not any(row.progress in may_have_called and row.tid in tids for row in progress)
    became = Progress.MOVED if proven else Progress.SAME_PLACE
    moved = ("operator calls",) if proven else ()
    return [
        row._replace(progress=became, moved=(*row.moved, *moved), place="") if row.tid in callers else row
        for row in progress
    ]


def with_collections(progress: Sequence[ThreadProgress], collector: int | None) -> list[ThreadProgress]:
    """The progress if thread ``collector`` collected garbage each time, but in different runs: it moved in between."""
    return [
        row._replace(progress=Progress.MOVED, moved=(*row.moved, "collections of garbage"), place="")
        if row.tid == collector and row.progress is Progress.SPINNING
        else row
        for row in progress
    ]


def judge_samples(
    judgement: Judgement,
    progress: Sequence[ThreadProgress],
    threads: Sequence[ThreadReport],
    samples: int,
    elapsed: float,
    calls: int | None,
) -> Judgement:
    """The judgement on the last sample, revised by the progress over all ``samples``, with a note on these and one on
    the ``calls`` of operators that a probe counted in ``elapsed`` seconds (None without a probe)."""
    judgement = revise_judgement(judgement, progress, threads)
    note, verdict = samples_note(progress, threads, samples, elapsed), judgement.verdict
    if calls is None:
        return Judgement((note, *judgement.findings), verdict)
    rate, text = f"{calls / elapsed if elapsed > 0 else 0.0:,.0f}", "No operator was called meanwhile."
    if calls:
        text = f"Dispatches continue: {rate} operator calls a second."
    if calls and verdict.kind is IDLE:
        busy = f"Operators are called ({rate} a second); in the last sample no thread was inside one."
        verdict = Verdict.of(verdict.finding._replace(kind=BUSY, summary=busy))
    return Judgement((note, Finding(NOTE, text, (), id="dispatches"), *judgement.findings), verdict)


def revise_judgement(
    judgement: Judgement, progress: Sequence[ThreadProgress], threads: Sequence[ThreadReport]
) -> Judgement:
    """The judgement on the last sample without the findings that movement between the samples refutes."""
    verdict = revise_verdict(judgement.verdict, progress, threads)
    findings = tuple(finding for finding in judgement.findings if not _is_refuted(finding, progress))
    strongest = next((finding for finding in findings if finding.kind is not NOTE), None)
    if verdict is not judgement.verdict and strongest:
        verdict = Verdict.of(strongest)
    return Judgement(findings, verdict)


def samples_note(
    progress: Sequence[ThreadProgress], threads: Sequence[ThreadReport], samples: int, elapsed: float
) -> Finding:
    """A note, one sentence, on the progress of all threads that are not idle workers."""
    reports = {thread.tid: thread for thread in threads}
    idle = {thread.tid for thread in threads if thread.state is RunState.IDLE}
    parts = []
    for kind, text in _TEXTS.items():
        tids = [row.tid for row in progress if row.progress is kind and row.tid not in idle]
        if kind is Progress.STUCK:
            ready = [tid for tid in tids if tid in reports and reports[tid].state is RunState.RUNNING]
            tids = [tid for tid in tids if tid not in ready]
            if ready:
                names = listed([reports[tid].label for tid in ready], 4)
                parts.append(f"{names} {'was' if len(ready) == 1 else 'were'} ready to run but not scheduled")
        if tids:
            labels = [reports[tid].label if tid in reports else f"thread {tid}" for tid in tids]
            parts.append(f"{listed(labels, 4)} {text}")
    parts += [f"{reports[row.tid].label} spins in {row.place}" for row in progress if row.place and row.tid in reports]
    text = f"In {samples} samples over {elapsed:.1f} s: {'; '.join(parts) or 'all threads are idle'}."
    stuck = tuple(row.tid for row in progress if row.progress is Progress.STUCK)
    return Finding(NOTE, text, stuck, id="samples")


def revise_verdict(verdict: Verdict, progress: Sequence[ThreadProgress], threads: Sequence[ThreadReport]) -> Verdict:
    """The verdict on the last sample; BUSY or IDLE in place of a wait whose threads moved between the samples."""
    finding = verdict.finding
    if not _is_refuted(finding, progress):
        return verdict
    inside = any(thread.dispatch for thread in threads if thread.tid in finding.threads)
    text = (
        f"Not stuck: the threads of this wait made progress between the samples. In the last sample: {finding.summary}"
    )
    kind = BUSY if inside else IDLE
    return Verdict.of(finding._replace(kind=kind, summary=text, cycle=(), id=""))


def _is_refuted(finding: Finding, progress: Sequence[ThreadProgress]) -> bool:
    moved = {row.tid for row in progress if row.progress is Progress.MOVED}
    return finding.kind.movement_refutes_it and not moved.isdisjoint(finding.threads)
