"""Rules: each finds one kind of finding in the observations. What they find is put into words in sentences.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gdbext.model.judgement.finding import Finding
from gdbext.model.judgement.finding_kind import FindingKind
from gdbext.model.threads.thread_report import RunState, ThreadReport
from gdbext.verdict import blocked, sentences
from gdbext.verdict.crash import CrashKind
from gdbext.verdict.graph import Chain, WaitGraph
from gdbext.verdict.observations import Observations
from gdbext.verdict.task_cycles import task_cycles

Rule = Callable[[Observations, WaitGraph], Iterator[Finding]]


def _crashes(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for tid, crash in seen.crashes.items():
        if crash.kind is CrashKind.STACK_OVERFLOW and tid in seen.recursions:
            continue
        thread, master = graph.threads[tid], graph.threads.get(seen.masters.get(tid, 0))
        step = thread.innermost or (master.innermost if master is not None else None)
        involved = (tid,) if master is None else (tid, master.tid)
        yield Finding(FindingKind.CRASH, sentences.crash(thread, crash, master), involved, step=step)


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


def _task_deadlocks(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    for thread in seen.threads:
        for cycle in task_cycles(thread.loop) if thread.loop is not None else ():
            text = sentences.task_deadlock(cycle, thread)
            evidence = tuple(f"{task.name}: {task.frames[0].place}" for task in cycle if task.frames)
            yield Finding(FindingKind.DEADLOCK, text, (thread.tid,), evidence)


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


def _main(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """The main thread waits for another process, though only a thread of this one, or a loop, stands between them."""
    main = seen.main
    if main is None or main.wait is None or main.state is RunState.IDLE:
        return
    story = graph.story(main.tid)
    end = graph.threads[story.end].wait
    if end is None or not blocked.leads_outside(end) or not (story.edges or end.looks_for):
        return
    evidence = tuple(text for tid in story.tids for text in _evidence(graph.threads[tid]))
    text = f"{sentences.story(story, graph)}."
    step = next((thread.innermost for thread in map(graph.threads.__getitem__, story.tids) if thread.dispatch), None)
    yield Finding(FindingKind.WAITING_EXTERNAL, text, story.tids, evidence, step, wait=end)


def _evidence(thread: ThreadReport) -> tuple[str, ...]:
    return thread.wait.evidence if thread.wait is not None else ()


def _busy(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for thread in blocked.busy_threads(seen, graph):
        step = thread.dispatch[0]
        yield Finding(FindingKind.BUSY, sentences.busy(thread, step), (thread.tid,), step=step)


RULES: tuple[Rule, ...] = (
    _crashes, _recursions, _deadlocks, _task_deadlocks, _self_deadlocks, _orphans, _missing_workers, _blocked, _main,
    _external, _busy,
)  # fmt: skip
"""In any order: findings are ranked by their kind."""
