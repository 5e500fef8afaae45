"""Waits for threads that do not exist: owners of locks, workers of pools, threads that should act."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gdbext.diagnosis.kinds.verdict_kind import VerdictKind
from gdbext.diagnosis.report.finding import Finding, FindingKind
from gdbext.diagnosis.report.suggestion import Suggestion
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import ParentsThread, Wait
from gdbext.diagnosis.report.wait_kind import Loss, LostThread, WaitKind
from gdbext.diagnosis.verdict.clauses import listed, owner_clause, waiting_clause
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph, no_thread_can_wake_others

_WITHOUT_FORK = (
    "Start processes with 'spawn' or 'forkserver' (multiprocessing.set_start_method), or fork before threads."
)


class OrphanedLock(VerdictKind):
    """The owner of the lock has exited, or is in the process that forked this one."""

    value = "orphaned-lock"
    words = "orphaned lock"
    what_to_do = "start processes with `spawn`, or release the lock before the fork"
    is_defect = movement_refutes_it = True

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Waits for a lock whose owner is no thread of this process, unless it is about to be released."""
        for thread, wait in facts.waits:
            if wait.gone_owner and not wait.being_released:
                text = waiting_clause(thread, wait) + owner_clause(wait, graph.threads)
                if not all(isinstance(owner, ParentsThread) for owner in wait.owners):
                    text += " (forked while it was held, or the owner exited without unlocking)"
                yield Finding(self, f"{text}.", (thread.tid,), wait.evidence, thread.innermost, wait=wait)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        yield _WITHOUT_FORK
        if finding.wait and finding.wait.kind is WaitKind.PYTHON_LOCK:
            yield "In your own code, use os.register_at_fork(after_in_child=…) to give the child a new lock."
        else:
            yield ("In your own code, use pthread_atfork handlers that take the lock before fork and release it after.")


class WorkersMissing(VerdictKind):
    """A pool has no threads, or a thread is missing, usually because the process was forked after they had started; or
    a pool's worker process was killed, and the pool does not notice."""

    value = "missing-workers"
    words = "worker threads are missing"
    what_to_do = "start processes with `spawn`, or create the pool after the fork; end what outlived a killed worker"
    is_defect = movement_refutes_it = True

    def heading(self, finding: Finding) -> str:
        """``a worker process is dead`` if it is one, else the words of the kind."""
        lost = finding.wait.detail.lost if finding.wait else None
        return "a worker process is dead" if lost and lost.loss is Loss.KILLED else self.words

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Waits for a pool's workers, or for another thread, that a fork left behind in the parent process."""
        for thread, wait in facts.waits:
            missing = wait.detail.missing_workers
            if missing and missing.forked:
                text = f"{waiting_clause(thread, wait)}{wait.detail.absence}."
                yield Finding(self, text, (thread.tid,), wait.evidence, thread.innermost, wait=wait)
        yield from waits_for_lost(self, (Loss.LEFT_BEHIND, Loss.KILLED), facts, graph)

    def is_refuted(self, finding: Finding, facts: Observations, graph: WaitGraph) -> bool:
        """As for other kinds, but a thread that spins runs all the time."""
        missing = finding.wait.detail.missing_workers if finding.wait else None
        return not (missing and missing.spins) and super().is_refuted(finding, facts, graph)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        lost = finding.wait.detail.lost if finding.wait else None
        if not (lost and lost.loss is Loss.KILLED):
            yield "Start worker processes with 'spawn' instead of 'fork'; thread pools do not survive fork."
        if finding.wait:
            yield from finding.wait.detail.advice_on_absence


def waits_for_lost(
    kind: VerdictKind, losses: Sequence[Loss], facts: Observations, graph: WaitGraph
) -> Iterator[Finding]:
    """Findings of this kind: threads that wait for a thread that was lost in one of these ways."""
    for thread, wait in facts.waits:
        lost = wait.detail.lost
        if lost and lost.loss in losses and _is_lost(thread, wait, lost, facts):
            waiters = [graph.threads[tid] for tid in graph.waiters.get(thread.tid, ())]
            text = f"{waiting_clause(thread, wait)}{wait.detail.absence}"
            if waiters:
                wants = listed([waiter.label for waiter in waiters])
                text += f"; {wants} {'wait' if len(waiters) > 1 else 'waits'} for this thread"
            elif lost.loss is Loss.KILLED and facts.main and facts.main is not thread and facts.main.wait:
                waiters = [facts.main]
                text += f"; {facts.main.label} {facts.main.wait.phrase}"
            tids = (thread.tid, *(waiter.tid for waiter in waiters))
            yield Finding(kind, f"{text}.", tids, wait.evidence, thread.innermost, wait=wait)


def _is_lost(thread: ThreadReport, wait: Wait, lost: LostThread, facts: Observations) -> bool:
    """True if the loss is proven, or no other thread (besides those that poll for this one) can wake any: conclusions
    from functions and names count only then, and so does a pipe that is not read by the main thread: perhaps nothing is
    due. A timed wait counts only if a loop repeats it."""
    if thread.state is RunState.IDLE or (wait.ends_by_itself and not wait.detail.looks_for):
        return False
    if lost.recorded or lost.is_proven or (lost.loss is Loss.KILLED and thread is facts.main):
        return True
    polling = {
        waiter.tid for waiter, own in facts.waits if own.detail.looks_for and own.detail.expects == (thread.tid,)
    }
    others = [other for other in facts.threads if other is not thread and other.tid not in polling]
    return facts.complete and no_thread_can_wake_others(others)


ORPHANED_LOCK = OrphanedLock()
MISSING_WORKERS = WorkersMissing()


def advice_on_child(kinds: Iterable[FindingKind]) -> tuple[str, ...]:
    """Advice for a process that waits for children with these verdicts: a fork's damage is repaired in the parent."""
    if any(kind in (ORPHANED_LOCK, MISSING_WORKERS) for kind in kinds):
        return (f"In this process, which made the child: {_WITHOUT_FORK}",)
    return ()
