"""Stuck or slow: what changed in each thread between several samples of a process. Pure."""

from __future__ import annotations

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
    """The work of a thread between two samples while nobody stopped it: nanoseconds on a processor, context switches,
    bytes, page faults; None for what is not known."""

INNER = 7
"""Innermost frames that may differ in a thread that does not move: a wait that wakes up and begins again."""
BUSY_SHARE = 0.2
"""Share of the time that the process ran from which a thread on a processor counts as working."""


_TEXTS = {
    Progress.MOVED: "moved on",
    Progress.SPINNING: "used the processor without leaving one place",
    Progress.SAME_PLACE: "seen at the same place each time (it may have moved in between)",
    Progress.STUCK: "made no progress",
    Progress.NEW: "appeared",
    Progress.ENDED: "ended",
}
_COUNTERS = ("processor time", "context switches", "bytes read or written", "page faults")
"""The counters of a thread, in the order of Done."""
_MAY_HAVE_CALLED = (Progress.MOVED, Progress.NEW, Progress.SAME_PLACE)
_CALLS = "calls of operators"
_EFFECTS = 2
"""The first counters also change in a wait that wakes up and begins again."""


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

    ``waking``: threads whose wait wakes up and begins again by itself, as that for the GIL does.
    """
    tids = dict.fromkeys(tid for sample in samples for tid in sample)
    return [
        _progress(tid, [each.get(tid) for each in samples], [each.get(tid, ()) for each in done], ran, tid in waking)
        for tid in tids
    ]


def _progress(
    tid: int, places: Sequence[SamplePlace | None], done: Sequence[Done], ran: float, wakes: bool
) -> ThreadProgress:
    if not places[-1]:
        return ThreadProgress(tid, Progress.ENDED)
    seen = [place for place in places if place]
    if len(seen) < len(places):
        return ThreadProgress(tid, Progress.NEW)
    if any(_moved(one, other) for one, other in zip(seen, seen[1:])):
        return ThreadProgress(tid, Progress.MOVED, ("its frames", *_changed(done)))
    worked = sum((each[0] or 0) for each in done if each)
    if worked > ran * BUSY_SHARE * 1e9 or (worked and all(place.functions for place in seen)):
        return ThreadProgress(tid, Progress.SPINNING, _changed(done), _common_function(seen))
    if any(one.instruction != other.instruction for one, other in zip(seen, seen[1:])):
        return ThreadProgress(tid, Progress.MOVED, ("its Python instruction", *_changed(done)))
    changed = _changed(done, _EFFECTS if wakes else 0)
    return ThreadProgress(tid, Progress.SAME_PLACE if changed else Progress.STUCK, changed)


def _changed(done: Sequence[Done], first: int = 0) -> tuple[str, ...]:
    """The names of the counters that changed, from the ``first`` one on."""
    names = enumerate(_COUNTERS)
    return tuple(name for at, name in names if at >= first and any(len(each) > at and each[at] for each in done))


def _common_function(seen: Sequence[SamplePlace]) -> str:
    """The innermost function that the thread was in, in all samples: the one that the last common frame called."""
    common = min((_common(one, other) for one, other in zip(seen, seen[1:])), default=0)
    last = seen[-1]
    level = max(len(last.addresses) - common - 1, 0)
    return last.functions[level] if level < len(last.functions) else ""


def _common(one: SamplePlace, other: SamplePlace) -> int:
    """Number of outermost frames that two samples have in common."""
    common = 0
    for mine, theirs in zip(one.addresses, other.addresses):
        if mine != theirs:
            break
        common += 1
    return common


def _moved(one: SamplePlace, other: SamplePlace) -> bool:
    return one.python != other.python or _common(one, other) + INNER < max(len(one.addresses), len(other.addresses))


def with_calls(found: Sequence[ThreadProgress], threads: Sequence[ThreadReport], calls: int) -> list[ThreadProgress]:
    """The progress in the light of so many calls of operators meanwhile: a thread that calls operators leaves its
    place, though it was found there each time. Who called them is known where one thread alone can have."""
    known = {thread.tid: thread for thread in threads}
    callers = [each.tid for each in found if each.progress is Progress.SPINNING and each.tid in known]
    others = [each.tid for each in found if each.progress in _MAY_HAVE_CALLED and each.tid in known]
    if not calls or not callers:
        return list(found)
    proven = len(callers) == 1 and not others
    became = Progress.MOVED if proven else Progress.SAME_PLACE
    return [
        each._replace(progress=became, moved=(*each.moved, *((_CALLS,) if proven else ())), place="")
        if each.tid in callers
        else each
        for each in found
    ]


def with_collections(found: Sequence[ThreadProgress], collector: int | None) -> list[ThreadProgress]:
    """The progress where that thread collected garbage each time, and not in the same run: it went on in between."""
    return [
        each._replace(progress=Progress.MOVED, moved=(*each.moved, "collections of garbage"), place="")
        if each.tid == collector and each.progress is Progress.SPINNING
        else each
        for each in found
    ]


def agreeing(judgement: Judgement, found: Sequence[ThreadProgress], threads: Sequence[ThreadReport]) -> Judgement:
    """The judgement on the last sample in the light of all: what is refuted by movement is not listed either."""
    verdict = revised(judgement.verdict, found, threads)
    kept = tuple(each for each in judgement.findings if not _is_refuted(each, found))
    next_one = next((each for each in kept if each.kind is not NOTE), None)
    if verdict is not judgement.verdict and next_one:
        verdict = Verdict.of(next_one)
    return Judgement(kept, verdict)


def goes_on(verdict: Verdict, calls: int, seconds: float) -> Verdict:
    """An idle process in which operators are called is busy."""
    if not calls or verdict.kind is not IDLE:
        return verdict
    text = f"Operators are called ({_rate(calls, seconds)} a second); in the last look no thread was inside of one."
    return Verdict.of(verdict.finding._replace(kind=BUSY, summary=text))


def _rate(calls: int, seconds: float) -> str:
    return f"{calls / seconds if seconds > 0 else 0.0:,.0f}"


def dispatches(calls: int, seconds: float) -> Finding:
    """The dispatches that a probe counted between the samples."""
    text = "No operator was called meanwhile."
    if calls:
        text = f"Dispatches go on: {_rate(calls, seconds)} calls of operators a second."
    return Finding(NOTE, text, (), id="dispatches")


def summary(found: Sequence[ThreadProgress], threads: Sequence[ThreadReport], samples: int, elapsed: float) -> Finding:
    """One sentence about all threads that are not idle workers."""
    known = {thread.tid: thread for thread in threads}
    idle = {thread.tid for thread in threads if thread.state is RunState.IDLE}
    parts = []
    for progress, text in _TEXTS.items():
        tids = [each.tid for each in found if each.progress is progress and each.tid not in idle]
        if progress is Progress.STUCK:
            ready = [tid for tid in tids if tid in known and known[tid].state is RunState.RUNNING]
            tids = [tid for tid in tids if tid not in ready]
            if ready:
                names = listed([known[tid].label for tid in ready], 4)
                parts.append(f"{names} {'was' if len(ready) == 1 else 'were'} ready to run, and had no turn")
        labels = [known[tid].label if tid in known else f"thread {tid}" for tid in tids]
        if labels:
            parts.append(f"{listed(labels, 4)} {text}")
    parts += [f"{known[each.tid].label} spins in {each.place}" for each in found if each.place and each.tid in known]
    text = f"In {samples} samples over {elapsed:.1f} s: {'; '.join(parts) or 'all threads are idle'}."
    stuck = tuple(each.tid for each in found if each.progress is Progress.STUCK)
    return Finding(NOTE, text, stuck, id="samples")


def revised(verdict: Verdict, found: Sequence[ThreadProgress], threads: Sequence[ThreadReport]) -> Verdict:
    """The verdict on the last sample in the light of all: what moved on is slow, not stuck."""
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
