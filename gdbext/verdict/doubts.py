"""Notes on what forbids to say "no deadlock": locks whose owner nobody records, futexes of unknown meaning."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from gdbext.model.judgement.finding import Finding
from gdbext.model.judgement.finding_kind import FindingKind
from gdbext.model.threads.thread_report import RunState
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.verdict import sentences
from gdbext.verdict.graph import WaitGraph
from gdbext.verdict.observations import Observations


def doubts(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """The notes, those about single threads first."""
    return chain(_unknown_owners(seen), _sleeping_holders(seen, graph), _timed_cycles(graph))


def _unknown_owners(seen: Observations) -> Iterator[Finding]:
    for thread in seen.threads:
        wait = thread.wait
        if wait is None or wait.handover or thread.state is RunState.IDLE or wait.ends_by_itself:
            continue
        if wait.owners or wait.missing is not None or not wait.kind.traits.may_be_lock:
            continue
        yield Finding(FindingKind.NOTE, sentences.owner_unknown(thread, wait), (thread.tid,), wait=wait)


def _sleeping_holders(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """Threads that sleep, for a time that a core does not tell, with the GIL in hand and others waiting for it."""
    waiters: dict[int, int] = {}
    for thread in seen.threads:
        if thread.wait is not None and thread.wait.kind is WaitKind.GIL and thread.wait.owner is not None:
            waiters[thread.wait.owner.tid] = waiters.get(thread.wait.owner.tid, 0) + 1
    for tid, count in waiters.items():
        holder = graph.threads.get(tid)
        wait = holder.wait if holder is not None else None
        if holder is not None and wait is not None and wait.kind is WaitKind.SLEEP and wait.seconds is None:
            yield Finding(FindingKind.NOTE, sentences.sleeps_with_gil(holder, wait, count), (tid,), wait=wait)


def _timed_cycles(graph: WaitGraph) -> Iterator[Finding]:
    for cycle in graph.cycles(with_timed=True):
        timed = next((edge for edge in cycle if edge.wait.ends_by_itself), None)
        if timed is not None:
            threads = [graph.threads[edge.tid] for edge in cycle]
            text = sentences.timed_cycle(threads, graph.threads[timed.tid])
            yield Finding(FindingKind.NOTE, text, tuple(edge.tid for edge in cycle), cycle=cycle)
