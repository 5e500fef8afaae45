"""Rules: each finds one kind of finding in the observations. What they find is put into words in sentences.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gdbext.model.finding import Finding
from gdbext.model.finding_kind import FindingKind
from gdbext.verdict import blocked, sentences
from gdbext.verdict.crash import CrashKind
from gdbext.verdict.graph import Chain, WaitGraph
from gdbext.verdict.observations import Observations

Rule = Callable[[Observations, WaitGraph], Iterator[Finding]]


def _crashes(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for tid, crash in seen.crashes.items():
        if crash.kind is CrashKind.STACK_OVERFLOW and tid in seen.recursions:
            continue
        thread, master = graph.threads[tid], graph.threads.get(seen.masters.get(tid, 0))
        step = thread.innermost or (master.innermost if master is not None else None)
        yield Finding(FindingKind.CRASH, sentences.crash(thread, crash, master), (tid,), step=step)


def _recursions(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for tid, recursion in seen.recursions.items():
        thread = graph.threads[tid]
        text = sentences.recursion(thread, recursion, seen.crashes.get(tid))
        evidence = (recursion.why, f"{recursion.steps} of {len(thread.dispatch)} dispatcher steps repeat "
                                   f"with period {len(recursion.group)}")  # fmt: skip
        yield Finding(FindingKind.RUNAWAY_RECURSION, text, (tid,), evidence, recursion.innermost)


def _deadlocks(_seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for cycle in graph.cycles():
        steps = (graph.threads[edge.tid].innermost for edge in cycle)
        step = next((step for step in steps if step is not None), None)
        evidence = tuple(text for edge in cycle for text in edge.wait.evidence)
        tids = tuple(edge.tid for edge in cycle)
        yield Finding(FindingKind.DEADLOCK, sentences.deadlock(cycle, graph), tids, evidence, step, cycle)


def _self_deadlocks(_seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for edge in graph.self_loops():
        thread, evidence = graph.threads[edge.tid], edge.wait.evidence
        text = sentences.self_deadlock(thread, edge.wait)
        yield Finding(
            FindingKind.SELF_DEADLOCK, text, (edge.tid,), evidence, thread.innermost, (edge,), edge.wait
        )  # fmt: skip


def _orphans(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for thread in seen.threads:
        wait = thread.wait
        if wait is None or wait.handover or not any(owner.gone for owner in wait.owners):
            continue
        text = sentences.orphaned(thread, wait, graph)
        yield Finding(
            FindingKind.ORPHANED_LOCK, text, (thread.tid,), wait.evidence, thread.innermost, wait=wait
        )  # fmt: skip


def _missing_workers(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    for thread in seen.threads:
        wait = thread.wait
        if wait is not None and wait.missing is not None and wait.missing.forked:
            text = sentences.missing(thread, wait)
            yield Finding(
                FindingKind.MISSING_WORKERS, text, (thread.tid,), wait.evidence, thread.innermost, wait=wait
            )  # fmt: skip


def _blocked(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    alike: dict[object, list[Chain]] = {}
    for chain in blocked.blocked_chains(seen, graph):
        alike.setdefault(_likeness(chain, graph), []).append(chain)
    for chain, *more in alike.values():
        tids = list(dict.fromkeys([edge.tid for edge in chain.edges] + [chain.end]))
        threads = [graph.threads[tid] for tid in tids if tid in graph.threads]
        steps = [thread.innermost for thread in threads if thread.innermost is not None]
        evidence = tuple(text for thread in threads if thread.wait for text in thread.wait.evidence)
        text = sentences.blocked(chain, graph, alike=len(more))
        tids += [other.end for other in more]
        yield Finding(
            FindingKind.BLOCKED, text, tuple(tids), evidence, steps[-1] if steps else None,
            wait=graph.threads[chain.end].wait,
        )  # fmt: skip


def _likeness(chain: Chain, graph: WaitGraph) -> object:
    """Equal for threads that wait by themselves for the same thing in the same operator: they are one finding."""
    end = graph.threads[chain.end]
    if chain.edges or end.wait is None or not end.dispatch or not end.stack_key:
        return chain.end
    resource = end.wait.resource
    step = end.dispatch[0]
    # Python's locks, timers and descriptors are one for each thread, and yet the threads are alike.
    address = resource.address if resource.kind.traits.told_apart_by_address else 0
    return (resource.kind, address, step.op, step.overload, step.key, end.stack_key)


def _external(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    kind, main = FindingKind.WAITING_EXTERNAL, seen.main
    if seen.stopped and main is not None:
        text = sentences.stopped(seen.pid)
        yield Finding(kind, text, (main.tid,), step=main.innermost, process_stopped=True)
    for thread, wait in blocked.external_waits(seen):
        text = sentences.external(thread, wait)
        yield Finding(kind, text, (thread.tid,), wait.evidence, thread.innermost, wait=wait)


def _busy(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for thread in blocked.busy_threads(seen, graph):
        step = thread.dispatch[0]
        yield Finding(FindingKind.BUSY, sentences.busy(thread, step), (thread.tid,), step=step)


RULES: tuple[Rule, ...] = (
    _crashes, _recursions, _deadlocks, _self_deadlocks, _orphans, _missing_workers, _blocked, _external, _busy,
)  # fmt: skip
"""In any order: findings are ranked by their kind."""
