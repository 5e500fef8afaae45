"""Leads from snapshots to findings and the one verdict: graph, recursion, crash, progress, advice. Pure functions.

Notes on what forbids to say "no deadlock": locks whose owner nobody records, futexes of unknown meaning.
"""

from __future__ import annotations

from itertools import chain

from gdbext.diagnosis.report.finding import Finding, FindingKind, Verdict
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import VanishedThread
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict import chains, rules, sentences
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph
from gdbext.diagnosis.verdict.rules import RULES
from gdbext.engine.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gdbext.diagnosis.report.wait import Wait


def caveats(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """The notes, those about single threads first."""
    return chain(_unknown_owners(seen), _sleeping_holders(seen, graph), _timed_cycles(graph))


def _unknown_owners(seen: Observations) -> Iterator[Finding]:
    """One note for all threads that wait for the same lock at the same place."""
    alike: dict[object, list[ThreadReport]] = {}
    for thread in _without_owner(seen):
        address = thread.wait.address if thread.wait is not None else 0
        alike.setdefault((address, thread.stack_key) if address and thread.stack_key else thread.tid, []).append(thread)
    for first, *others in alike.values():
        if first.wait is not None:
            text = owner_unknown(first, first.wait, len(others))
            yield Finding(FindingKind.NOTE, text, (first.tid, *(each.tid for each in others)), wait=first.wait)


def _without_owner(seen: Observations) -> Iterator[ThreadReport]:
    for thread in seen.threads:
        wait = thread.wait
        if wait is None or wait.being_released or thread.state is RunState.IDLE or wait.ends_by_itself:
            continue
        if wait.owners or wait.missing_workers is not None or not wait.kind.traits.may_be_lock:
            continue
        if thread.tid in seen.moved():
            continue  # whatever it waited for has come: it runs
        yield thread


def _sleeping_holders(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """Threads that sleep, for a time that a core does not tell, with the GIL in hand and others waiting for it."""
    waiters: dict[int, int] = {}
    for thread in seen.threads:
        if thread.wait is not None and thread.wait.kind is WaitKind.GIL:
            for tid in thread.wait.owner_tids:
                waiters[tid] = waiters.get(tid, 0) + 1
    for tid, count in waiters.items():
        holder = graph.threads.get(tid)
        wait = holder.wait if holder is not None else None
        if holder is not None and wait is not None and wait.kind is WaitKind.SLEEP and wait.seconds is None:
            yield Finding(FindingKind.NOTE, sleeps_with_gil(holder, wait, count), (tid,), wait=wait)


def _timed_cycles(graph: WaitGraph) -> Iterator[Finding]:
    for cycle in graph.cycles(with_timed=True):
        timed = next((edge for edge in cycle if edge.wait.ends_by_itself), None)
        if timed is not None:
            threads = [graph.threads[edge.tid] for edge in cycle]
            text = timed_cycle(threads, graph.threads[timed.tid])
            yield Finding(FindingKind.NOTE, text, tuple(edge.tid for edge in cycle), cycle=cycle)


class Judgement(Record):
    """All findings, strongest first, and the verdict."""

    findings: tuple[Finding, ...]
    verdict: Verdict


def judge(seen: Observations) -> Judgement:
    """The findings and the verdict on a process that stands still."""
    graph = WaitGraph(seen.threads)
    found = [finding for rule in RULES for finding in rule(seen, graph) if not _is_refuted(finding, seen, graph)]
    found.sort(key=lambda finding: finding.kind.rank)
    notes = list(caveats(seen, graph))
    findings = _numbered([finding for finding in found if finding.kind is not FindingKind.BUSY] + notes)
    return Judgement(findings, Verdict.of(_strongest(seen, graph, found, findings, notes)))


def _is_refuted(finding: Finding, seen: Observations, graph: WaitGraph) -> bool:
    """A thread that is said to wait for ever, or the one that it is said to wait for in vain, has run since. A timed
    wait that begins again says nothing."""
    traits = finding.kind.traits
    if finding.kind is FindingKind.KERNEL_WAIT:
        return seen.has_run(finding.threads[0])  # the one that sleeps there
    if not (traits.is_defect and traits.movement_refutes_it):
        return False
    owners = finding.wait.owners if finding.wait is not None else ()
    gone = [owner.tid for owner in owners if isinstance(owner, VanishedThread) and owner.tid]
    waits = {tid: graph.threads[tid].wait for tid in finding.threads if tid in graph.threads}
    return any(seen.has_run(tid) for tid in (*(t for t, wait in waits.items() if wait and not wait.timed), *gone))


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
    running = _running(seen)
    unclear = [thread for thread in seen.threads if thread.dispatch_doubt is not None and thread.pool is None]
    if unclear:
        return _healthy(unseen_dispatch(unclear, doubt), unclear, running)
    if seen.main is not None and seen.main.state is RunState.WAITING:
        return _main_waits(seen, seen.main, graph, notes)
    if running:
        text = runs_elsewhere(running, _want_gil_of(running, seen), seen.has_torch)
        return _healthy(f"{text} {doubt}".rstrip(), running, running)
    if notes:
        text = outside("no hang is proven", seen.has_torch)
        return Finding(FindingKind.IDLE, f"{text}; but: {doubt}", notes[0].threads)
    return Finding(FindingKind.IDLE, idle(seen.main, seen.has_torch))


def _running(seen: Observations) -> list[ThreadReport]:
    """The threads that run: the holder of a GIL first, for the others wait for it, then those of which a line is
    known."""
    running = [thread for thread in seen.threads if thread.state is RunState.RUNNING]
    return sorted(running, key=lambda each: (not _has_gil(each), not each.python_frames, each.tid != seen.pid))


def _has_gil(thread: ThreadReport) -> bool:
    return any(resource.kind is WaitKind.GIL for resource in thread.holds)


def _main_waits(seen: Observations, main: ThreadReport, graph: WaitGraph, notes: Sequence[Finding]) -> Finding:
    """The main thread's wait is what a user came for, also where it is no finding."""
    wait_chain = graph.wait_chain(main.tid)
    involved = [graph.threads[tid] for tid in wait_chain.tids]
    from_outside = seen.complete and not notes and chains.nobody_goes_on(seen.threads)
    running = _running(seen)
    others = [each for each in running if each not in involved]
    text = sentences.wait_chain(wait_chain, graph, with_end=not from_outside)
    if not wait_chain.edges and main.user_line and main.wait is not None and _is_asleep(main.wait):
        text += f", called from {main.user_line}"
    doubt = f"but: {notes[0].summary}" if notes else ""
    if notes and notes[0].wait is not None and notes[0].wait is involved[-1].wait and len(notes[0].threads) == 1:
        doubt = f"but {_NOT_RECORDED}"  # the sentence has begun with that very wait
    text = main_waits(text, from_outside, others, doubt, seen.has_torch)
    doubted = [graph.threads[tid] for note in notes[:1] for tid in note.threads]
    told = {thread.tid: thread for thread in (*involved, *doubted, *others[:1])}
    end = involved[-1].wait
    groups = rules.bystanders(seen, [*told]) if end is not None and not running and not _is_asleep(end) else []
    text += sentences.meanwhile(groups, graph.threads)
    told.update((group[0].tid, group[0]) for group in groups)
    return _healthy(text, list(told.values()), running, main.wait if not wait_chain.edges else end)


def _is_asleep(wait: Wait) -> bool:
    """It sleeps, and looks at nothing in between."""
    return wait.kind.traits.may_poll and not wait.polls


def _healthy(
    text: str, threads: Sequence[ThreadReport], running: Sequence[ThreadReport], wait: Wait | None = None
) -> Finding:
    """Nothing hangs: the process is busy where a thread of it runs, wherever it runs."""
    kind = FindingKind.BUSY if running else FindingKind.IDLE
    return Finding(kind, text, tuple(thread.tid for thread in threads), wait=wait if not running else None)


def _want_gil_of(running: Sequence[ThreadReport], seen: Observations) -> list[ThreadReport]:
    """The threads that wait for the GIL that the only thread that runs has."""
    holder = running[0].tid if len(running) == 1 else None
    return [
        thread
        for thread in seen.threads
        if thread.wait is not None and thread.wait.kind is WaitKind.GIL and holder in thread.wait.owner_tids
    ]


def outside(text: str, has_torch: bool) -> str:
    """The sentence about a process of which no thread is in the dispatcher; where there is none, nothing is said of
    it."""
    return f"No thread is in the dispatcher, and {text}" if has_torch else f"{text[:1].upper()}{text[1:]}"


def idle(main: ThreadReport | None, has_torch: bool) -> str:
    """No thread is in the dispatcher, none runs, and the main thread idles, as at a prompt."""
    text = outside("no wait is suspicious", has_torch)
    if main is None or main.wait is None:
        return f"{text}."
    return f"{main.label} {main.wait.phrase}; {text[:1].lower()}{text[1:]}."


def main_waits(
    text: str, ended_from_outside: bool, running: Sequence[ThreadReport], doubt: str, has_torch: bool
) -> str:
    """The main thread waits, and no hang is proven; ``text`` is its story. ``ended_from_outside``: only a signal or
    another process can end it; ``running`` are threads that run, beside those of the story.
    ``doubt``: ``but: worker (tid 2) …``."""
    if ended_from_outside:
        text += ", and no thread of this process will end that: only a signal or another process can; no hang is proven"
    if has_torch:
        text += f"{', and' if ended_from_outside else ';'} no thread is in the dispatcher"
    if running:
        text += f". {sentences.all_run(running)}"
    return f"{text}. No hang is proven; {doubt}" if doubt else f"{text}."


def runs_elsewhere(running: Sequence[ThreadReport], want_gil: Sequence[ThreadReport], has_torch: bool) -> str:
    """Threads run outside of the dispatcher; ``want_gil`` wait for the GIL that the only one of them has.

    One moment does not tell whether a thread that runs with the GIL will soon give it away.
    """
    others = f"{len(want_gil)} threads wait" if len(want_gil) > 1 else "".join(f"{t.label} waits" for t in want_gil)
    with_gil = f", with the GIL, for which {others}" if others else ""
    blocks = running[0].loop is not None and running[0].loop.current is not None and len(running[0].loop.tasks) > 1
    loop = sentences.loop_clause(running[0]) if blocks else ""
    return f"{sentences.all_run(running)}{with_gil}{', outside of the dispatcher' if has_torch else ''}{loop}."


def unseen_dispatch(threads: Sequence[ThreadReport], doubt: str) -> str:
    """Threads of which nobody can say whether they are in the dispatcher."""
    names = sentences.listed([thread.label for thread in threads])
    reason = next((thread.dispatch_doubt for thread in threads if thread.dispatch_doubt is not None), "")
    text = f"Whether {names} is in the dispatcher cannot be told ({reason})"
    return text + (f"; and: {doubt}" if doubt else ", and no hang is proven.")


_NOT_RECORDED = "its owner is not recorded in memory: a deadlock through it cannot be excluded."


def owner_unknown(thread: ThreadReport, wait: Wait, alike: int = 0) -> str:
    """The waits that forbid to say "no deadlock"; ``alike`` threads more wait at the same place for the same thing."""
    more = f", as {alike} more thread{'s do' if alike > 1 else ' does'}" if alike else ""
    return f"{thread.label} {wait.phrase}{more}, and {_NOT_RECORDED}"


def timed_cycle(threads: Sequence[ThreadReport], breaker: ThreadReport) -> str:
    """A cycle that the timed wait of ``breaker`` ends."""
    names = sentences.listed([thread.label for thread in threads])
    return f"{names} wait for each other, but the wait of {breaker.label} is timed and ends by itself."


def sleeps_with_gil(holder: ThreadReport, wait: Wait, waiters: int) -> str:
    """A thread sleeps with the GIL in hand."""
    others = "a thread waits" if waiters == 1 else f"{waiters} threads wait"
    return f"{holder.label} {wait.phrase} with the GIL in hand, for which {others}."
