"""From observations to findings, and from findings to the one verdict (contract, section 4). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.model.judgement.finding import Finding
from gdbext.model.judgement.finding_kind import FindingKind
from gdbext.model.judgement.verdict import Verdict
from gdbext.model.record import Record
from gdbext.model.threads.thread_report import RunState, ThreadReport
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.verdict import blocked, sentences
from gdbext.verdict.doubts import doubts
from gdbext.verdict.graph import WaitGraph
from gdbext.verdict.observations import Observations
from gdbext.verdict.rules import RULES


class Judgement(Record):
    """All findings, strongest first, and the verdict."""

    findings: tuple[Finding, ...]
    verdict: Verdict


def judge(seen: Observations) -> Judgement:
    """The findings and the verdict on a process that stands still."""
    graph = WaitGraph(seen.threads)
    found = [finding for rule in RULES for finding in rule(seen, graph) if not _is_refuted(finding, seen, graph)]
    found.sort(key=lambda finding: finding.kind.rank)
    notes = list(doubts(seen, graph))
    findings = _numbered([finding for finding in found if finding.kind is not FindingKind.BUSY] + notes)
    return Judgement(findings, Verdict(_strongest(seen, graph, found, findings, notes)))


def _is_refuted(finding: Finding, seen: Observations, graph: WaitGraph) -> bool:
    """A thread that is said to wait for ever, or the one that it is said to wait for in vain, has run since. A timed
    wait that begins again says nothing."""
    traits = finding.kind.traits
    if not (traits.is_defect and traits.movement_refutes_it):
        return False
    gone = [owner.tid for owner in finding.wait.owners if owner.gone] if finding.wait is not None else []
    waits = {tid: graph.threads[tid].wait for tid in finding.threads if tid in graph.threads}
    return any(seen.ran_on(tid) for tid in (*(t for t, wait in waits.items() if wait and not wait.timed), *gone))


def _numbered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings of one report with their ids."""
    return tuple(each._replace(id=f"{each.kind.value}-{number}") for number, each in enumerate(findings, 1))


def _strongest(
    seen: Observations,
    graph: WaitGraph,
    found: Sequence[Finding],
    listed: Sequence[Finding],
    notes: Sequence[Finding],
) -> Finding:
    doubt = notes[0].summary if notes else ""
    if not found:
        return _idle(seen, graph, notes)
    if found[0].kind is FindingKind.BUSY:
        return found[0]._replace(summary=f"{found[0].summary} {doubt}".rstrip())
    return listed[0]


def _idle(seen: Observations, graph: WaitGraph, notes: Sequence[Finding]) -> Finding:
    doubt = notes[0].summary if notes else ""
    unclear = [thread for thread in seen.threads if thread.unseen_dispatch is not None and thread.pool is None]
    if unclear:
        return _idle_finding(sentences.unseen_dispatch(unclear, doubt), unclear)
    if seen.main is not None and seen.main.state is RunState.WAITING:
        return _main_waits(seen, seen.main, graph, notes)
    if notes:
        text = f"No thread is in the dispatcher, and no hang is proven; but: {doubt}"
        return Finding(FindingKind.IDLE, text, notes[0].threads)
    running = [thread for thread in seen.threads if thread.state is RunState.RUNNING]
    if running:
        return _idle_finding(sentences.runs_elsewhere(running, _want_gil_of(running[0], seen)), running)
    return Finding(FindingKind.IDLE, sentences.idle(seen.main))


def _main_waits(seen: Observations, main: ThreadReport, graph: WaitGraph, notes: Sequence[Finding]) -> Finding:
    """The main thread's wait is what a user came for, also where it is no finding."""
    story = graph.story(main.tid)
    involved = [graph.threads[tid] for tid in story.tids]
    from_outside = seen.complete and not notes and blocked.nobody_goes_on(seen.threads)
    running = [each for each in seen.threads if each.state is RunState.RUNNING and each not in involved]
    text = sentences.story(story, graph, with_end=not from_outside)
    text = sentences.main_waits(text, from_outside, running, notes[0].summary if notes else "")
    doubted = [graph.threads[tid] for note in notes[:1] for tid in note.threads]
    return _idle_finding(text, list({thread.tid: thread for thread in (*involved, *doubted)}.values()))


def _idle_finding(text: str, threads: Sequence[ThreadReport]) -> Finding:
    return Finding(FindingKind.IDLE, text, tuple(thread.tid for thread in threads))


def _want_gil_of(holder: ThreadReport, seen: Observations) -> list[ThreadReport]:
    """The threads that wait for the GIL that a thread has."""
    return [
        thread for thread in seen.threads
        if thread.wait is not None and thread.wait.kind is WaitKind.GIL
        and any(owner.tid == holder.tid for owner in thread.wait.owners)
    ]  # fmt: skip
