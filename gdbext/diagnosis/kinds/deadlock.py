"""Circles of waits: of threads, of the tasks of an event loop, of a thread with itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.diagnosis.kinds.verdict_kind import VerdictKind
from gdbext.diagnosis.report.finding import Finding
from gdbext.diagnosis.report.suggestion import Suggestion
from gdbext.diagnosis.report.thread_report import AsyncTask, ThreadReport
from gdbext.diagnosis.report.wait import Wait, WaitEdge
from gdbext.diagnosis.report.wait_kind import Relation, WaitKind
from gdbext.diagnosis.verdict.clauses import PATH_LENGTH, holds, listed, loop_clause, who
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph, task_cycles


class Deadlock(VerdictKind):
    """A closed cycle of threads, each waiting for a lock of the next."""

    value = words = "deadlock"
    what_to_do = "take the locks in one order, or release the GIL before you block"
    is_defect = movement_refutes_it = True

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        for cycle in graph.cycles():
            steps = (graph.threads[edge.tid].innermost for edge in cycle)
            step = next((step for step in steps if step), None)
            evidence = tuple(text for edge in cycle for text in edge.wait.evidence)
            tids = tuple(edge.tid for edge in cycle)
            yield Finding(self, self.sentence(cycle, graph), tids, evidence, step, cycle)
        for thread in seen.threads:
            for tasks in task_cycles(thread.loop) if thread.loop else ():
                evidence = tuple(f"{task.called}: {task.frames[0].place}" for task in tasks if task.frames)
                yield Finding(self, self.of_tasks(tasks, thread), (thread.tid,), evidence)

    def sentence(self, cycle: Sequence[WaitEdge], graph: WaitGraph) -> str:
        """Each thread of the cycle with what it waits for and who has that."""
        parts = [f"{who(graph.threads[edge.tid])} {_needs(edge, graph)}" for edge in cycle]
        proven = all(edge.wait.certainty.is_proven for edge in cycle)
        doubt = "" if proven else " (an owner is inferred from stacks)"
        return f"{'; '.join(parts)}{doubt}."

    def of_tasks(self, cycle: Sequence[AsyncTask], thread: ThreadReport) -> str:
        """``The tasks credit and debit of the event loop of MainThread (tid 1) wait for each other: credit waits …``"""
        names = listed([task.called for task in cycle], PATH_LENGTH)
        steps = "; ".join(f"{task.called} {task.awaits}" for task in cycle)
        doubt = (
            " (who holds a lock is inferred from the blocks that the tasks are in)"
            if any(task.inferred for task in cycle)
            else ""
        )
        return f"The tasks {names} of the event loop of {thread.label} wait for each other: {steps}{doubt}."

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        kinds = [edge.wait.kind for edge in finding.cycle]
        with_gil = WaitKind.GIL in kinds
        if with_gil and any(kind.traits.is_native for kind in kinds):
            yield (
                "Never ask for a native lock while holding the GIL: release it first (py::gil_scoped_release, "
                "Py_BEGIN_ALLOW_THREADS) around the code that locks."
            )
        locks = [kind for kind in kinds if kind.traits.is_lock]
        yield from _of_wait_kinds(locks)
        if not with_gil and (len(locks) > 1 or not kinds):  # a cycle of tasks has no edges
            are_native = bool(locks) and all(kind.traits.is_native for kind in locks)
            together = ", or together (std::scoped_lock)" if are_native else ""
            yield f"Take these locks in one order everywhere{together}."
        yield from _of_wait_kinds([kind for kind in kinds if not kind.traits.is_lock])


def _needs(edge: WaitEdge, graph: WaitGraph) -> str:
    owner, relation = graph.threads[edge.held_by].label, edge.wait.kind.traits.relation
    if relation is Relation.IS:
        return f"{edge.wait.phrase}, which is {owner}"
    if relation is Relation.OWES:
        return f"{edge.wait.phrase}, which needs {owner}"
    return f"{edge.wait.phrase}, which {owner} {holds(edge.wait)}"


def _of_wait_kinds(kinds: Sequence[WaitKind]) -> Iterator[str]:
    yield from dict.fromkeys(kind.traits.advice_in_deadlock for kind in kinds if kind.traits.advice_in_deadlock)


class SelfDeadlock(VerdictKind):
    """A thread waits for a lock that it holds."""

    value = "self-deadlock"
    words = "waits for itself"
    what_to_do = "use a recursive lock, or do not call back while holding it"
    is_defect = movement_refutes_it = True

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        for edge in graph.self_loops():
            thread, evidence = graph.threads[edge.tid], edge.wait.evidence
            text = self.sentence(thread, edge.wait)
            yield Finding(self, text, (edge.tid,), evidence, thread.innermost, (edge,), edge.wait)

    def sentence(self, thread: ThreadReport, wait: Wait) -> str:
        """``… waits for the mutex 0x7f00, which it holds itself.``"""
        reason = f": {wait.detail.self_wait.value}" if wait.detail.self_wait else ""
        waits = wait.phrase if wait.kind is WaitKind.IO else f"waits for {wait.resource.phrase}"
        if wait.kind.traits.relation is Relation.OWES:
            return f"{who(thread)} {waits}, which only itself could end{reason}{loop_clause(thread)}."
        return f"{who(thread)} {waits}, which it {holds(wait)} itself{reason}."

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        if finding.wait and finding.wait.detail.self_wait:
            yield finding.wait.detail.self_wait.advice
            return
        yield "The lock is not recursive: do not call back into code that takes it, or use a recursive mutex (RLock)."


DEADLOCK = Deadlock()
SELF_DEADLOCK = SelfDeadlock()
