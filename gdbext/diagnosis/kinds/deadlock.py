"""Cycles of waits: of threads, of the tasks of an event loop, of a thread with itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.diagnosis.kinds.verdict_kind import VerdictKind
from gdbext.diagnosis.report.finding import Finding
from gdbext.diagnosis.report.suggestion import Suggestion
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.report.wait_kind import Relation, WaitKind
from gdbext.diagnosis.verdict.clauses import (
    PATH_LENGTH,
    holds_verb,
    listed,
    loop_clause,
    relation_clause,
    thread_clause,
)
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph, task_cycles


class Deadlock(VerdictKind):
    """A closed cycle of threads, each waiting for a lock of the next."""

    value = words = "deadlock"
    what_to_do = "take the locks in one order, or release the GIL before you block"
    is_defect = movement_refutes_it = True

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Pools whose threads wait for the pool itself, cycles of threads, and of the tasks of each event loop."""
        for pool in facts.taken_pools:
            if pool.waits_for_itself:
                waits = (graph.threads[tid].wait for tid in pool.tids)
                evidence = tuple(dict.fromkeys(text for wait in waits if wait for text in wait.evidence))
                yield Finding(self, pool.sentence, pool.tids, evidence, cures=(_OTHER_POOL,))
        for cycle in graph.cycles():
            steps = (graph.threads[edge.tid].innermost for edge in cycle)
            evidence = tuple(text for edge in cycle for text in edge.wait.evidence)
            tids = tuple(edge.tid for edge in cycle)
            parts = "; ".join(
                f"{thread_clause(graph.threads[edge.tid])} {edge.wait.phrase}, "
                f"{relation_clause(edge.wait, graph.threads[edge.held_by].label)}"
                for edge in cycle
            )
            inferred = sum(not edge.wait.certainty.is_proven for edge in cycle)
            holders = "a holder is" if inferred == 1 else "holders are"
            text = f"{parts}{f' ({holders} inferred from stacks)' if inferred else ''}."
            yield Finding(self, text, tids, evidence, next(filter(None, steps), None), cycle)
        for thread in facts.threads:
            for tasks in task_cycles(thread.loop) if thread.loop else ():
                evidence = tuple(f"{task.called}: {task.frames[0].place}" for task in tasks if task.frames)
                names = listed([task.called for task in tasks], PATH_LENGTH)
                text = f"The tasks {names} of the event loop of {thread.label} wait for each other: "
                text += "; ".join(f"{task.called} {task.awaits}" for task in tasks)
                if any(task.inferred for task in tasks):
                    text += " (lock holders are inferred from the blocks that the tasks are in)"
                yield Finding(self, f"{text}.", (thread.tid,), evidence)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        if finding.cures:
            yield from finding.cures
            return
        kinds = [edge.wait.kind for edge in finding.cycle]
        with_gil = WaitKind.GIL in kinds
        if with_gil and any(kind.traits.is_native for kind in kinds):
            yield (
                "Never take a native lock while holding the GIL: release the GIL first (py::gil_scoped_release, "
                "Py_BEGIN_ALLOW_THREADS) around the code that locks."
            )
        locks = [kind for kind in kinds if kind.traits.is_lock]
        others = [kind for kind in kinds if not kind.traits.is_lock]
        yield from dict.fromkeys(kind.traits.advice_in_deadlock for kind in locks if kind.traits.advice_in_deadlock)
        if not with_gil and (len(locks) > 1 or not kinds):  # a cycle of tasks has no edges
            are_native = bool(locks) and all(kind.traits.is_native for kind in locks)
            together = ", or together (std::scoped_lock)" if are_native else ""
            yield f"Take these locks in one order everywhere{together}."
        yield from dict.fromkeys(kind.traits.advice_in_deadlock for kind in others if kind.traits.advice_in_deadlock)


_OTHER_POOL = (
    "A thread of a pool must not wait for work that needs a thread of the same pool: give that work a pool (or "
    "limiter) of its own, or wait for it elsewhere."
)


class SelfDeadlock(VerdictKind):
    """A thread waits for a lock that it holds."""

    value = "self-deadlock"
    words = "waits for itself"
    what_to_do = "use a recursive lock, or do not call back while holding it"
    is_defect = movement_refutes_it = True

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Threads that wait for a lock that they hold, or for a result that only they can deliver."""
        for edge in graph.self_loops():
            thread, wait = graph.threads[edge.tid], edge.wait
            reason = f": {wait.detail.self_wait.value}" if wait.detail.self_wait else ""
            text = f"{thread_clause(thread)} "
            text += wait.phrase if wait.kind is WaitKind.IO else f"waits for {wait.resource.phrase}"
            if wait.kind.traits.relation is Relation.OWES:
                text += f", which only this thread can end{reason}{loop_clause(thread)}."
            else:
                text += f", which it {holds_verb(wait.kind, wait.certainty.is_proven)} itself{reason}."
            yield Finding(self, text, (edge.tid,), wait.evidence, thread.innermost, (edge,), wait)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        if finding.wait and finding.wait.detail.self_wait:
            yield finding.wait.detail.self_wait.advice
            return
        yield (
            "The lock is not recursive: either do not call back into code that takes it, or make it a recursive one "
            "(RLock)."
        )


DEADLOCK = Deadlock()
SELF_DEADLOCK = SelfDeadlock()
