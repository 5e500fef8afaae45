"""Rules: each finds one kind of finding in the observations. What they find is put into words in sentences.py.

Each finds cycles of threads or of the tasks of an event loop, chains that nobody will end, waits for the outside, or
busy threads. Pure.
"""

from __future__ import annotations

from gdbext.diagnosis.report.finding import Finding, FindingKind
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import Loss, LostThread, WaitKind
from gdbext.diagnosis.verdict import sentences
from gdbext.diagnosis.verdict.chains import (
    blocked_chains,
    busy_threads,
    external_waits,
    leads_outside,
    may_wake_others,
    nobody_goes_on,
)
from gdbext.diagnosis.verdict.graph import Chain, Observations, WaitGraph, task_cycles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Rule = Callable[[Observations, WaitGraph], Iterator[Finding]]


def _crashes(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for tid, crash in seen.crashes.items():
        if crash.is_stack_overflow and tid in seen.recursions:
            continue
        thread, master = graph.threads[tid], graph.threads.get(seen.masters.get(tid, 0))
        step = thread.innermost or (master.innermost if master is not None else None)
        involved = (tid,) if master is None else (tid, master.tid)
        cures = (_ENDLESS,) if crash.is_stack_overflow else ()
        yield Finding(FindingKind.CRASH, sentences.crash(thread, crash, master), involved, step=step, cures=cures)


_ENDLESS = "Something calls itself without an end: look at what repeats in the stack above."


def _recursions(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for tid, recursion in seen.recursions.items():
        thread = graph.threads[tid]
        text = sentences.recursion(thread, recursion, seen.crashes.get(tid))
        evidence = (
            recursion.why,
            f"{recursion.steps} of {len(thread.dispatch)} dispatcher steps repeat with period {len(recursion.group)}",
        )
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
            evidence = tuple(f"{task.called}: {task.frames[0].place}" for task in cycle if task.frames)
            yield Finding(FindingKind.DEADLOCK, text, (thread.tid,), evidence)


def _stuck_loops(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    for thread in seen.threads:
        if is_stuck(thread, seen) and not any(task_cycles(thread.loop) if thread.loop is not None else ()):
            text = sentences.stuck_loop(thread, alone=len(seen.threads) == 1)
            tasks = thread.loop.tasks if thread.loop is not None else ()
            evidence = tuple(f"{task.called}: {task.frames[0].place}" for task in tasks if task.frames)
            yield Finding(FindingKind.BLOCKED, text, (thread.tid,), evidence, wait=thread.wait)


def _unwoken_loops(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    """Loops that sleep until something comes, though they have callbacks to call: a loop looks at those before it
    sleeps (Lib/asyncio/base_events.py, _run_once), so that they came later, from where nobody wakes it."""
    for thread in seen.threads:
        if is_unwoken(thread):
            text = sentences.unwoken_loop(thread)
            yield Finding(FindingKind.BLOCKED, text, (thread.tid,), wait=thread.wait, cures=(_WAKE,))


_WAKE = (
    "Other threads must hand their calls over with loop.call_soon_threadsafe(), or asyncio.run_coroutine_threadsafe(): "
    "Event.set(), Queue.put_nowait() and Future.set_result() of asyncio wake nobody from there."
)


def is_unwoken(thread: ThreadReport) -> bool:
    """The thread's event loop sleeps without a time limit, and has callbacks that are due."""
    wait = thread.wait
    sleeps = wait is not None and wait.kind is WaitKind.IO and not wait.timed
    return sleeps and thread.loop is not None and bool(thread.loop.ready) and not thread.loop.current


def is_stuck(thread: ThreadReport, seen: Observations) -> bool:
    """The thread runs an event loop that only other threads could wake, and none of them will."""
    if thread.loop is None or not thread.loop.is_stuck or not seen.complete:
        return False
    waits = thread.wait is not None and thread.wait.kind is WaitKind.IO
    waits = waits and (thread.loop.always_timed or not (thread.wait is not None and thread.wait.timed))
    return waits and not any(may_wake_others(other) for other in seen.threads if other is not thread)


def _self_deadlocks(_seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for edge in graph.self_loops():
        thread, evidence = graph.threads[edge.tid], edge.wait.evidence
        text = sentences.self_deadlock(thread, edge.wait)
        yield Finding(FindingKind.SELF_DEADLOCK, text, (edge.tid,), evidence, thread.innermost, (edge,), edge.wait)


def _orphans(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for thread in seen.threads:
        wait = thread.wait
        if wait is None or wait.being_released or wait.gone_owner is None:
            continue
        text = sentences.orphaned(thread, wait, graph)
        yield Finding(FindingKind.ORPHANED_LOCK, text, (thread.tid,), wait.evidence, thread.innermost, wait=wait)


def _missing_workers(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    for thread in seen.threads:
        wait = thread.wait
        if wait is not None and wait.missing_workers is not None and wait.missing_workers.forked:
            text = sentences.missing(thread, wait)
            yield Finding(FindingKind.MISSING_WORKERS, text, (thread.tid,), wait.evidence, thread.innermost, wait=wait)


def _lost_threads(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """Threads that wait for one that is not there."""
    for thread in seen.threads:
        lost = thread.wait.lost if thread.wait is not None else None
        if thread.wait is None or lost is None or not _is_lost(thread, thread.wait, lost, seen):
            continue
        kind = FindingKind.MISSING_WORKERS if lost.loss is Loss.LEFT_BEHIND else FindingKind.BLOCKED
        theirs = [graph.threads[tid] for tid in graph.waiters().get(thread.tid, ())]
        text = sentences.lost(thread, thread.wait, lost, theirs)
        tids = (thread.tid, *(each.tid for each in theirs))
        yield Finding(kind, text, tids, thread.wait.evidence, thread.innermost, wait=thread.wait)


def _is_lost(thread: ThreadReport, wait: Wait, lost: LostThread, seen: Observations) -> bool:
    """Conclusions from functions and names alone count where nobody else goes on, or a thread's own name says that its
    function was one of those. A timed wait counts where a loop repeats it."""
    if thread.state is RunState.IDLE or (wait.ends_by_itself and not wait.looks_for):
        return False
    others = [other for other in seen.threads if other is not thread and not _only_looks_for(other, thread.tid)]
    return lost.recorded or lost.is_proven or (seen.complete and nobody_goes_on(others))


def _only_looks_for(thread: ThreadReport, tid: int) -> bool:
    """True if the thread sleeps, and looks for nothing but the end of that one."""
    return thread.wait is not None and bool(thread.wait.looks_for) and tuple(thread.wait.expects) == (tid,)


def _blocked(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    alike: dict[object, list[Chain]] = {}
    for chain in blocked_chains(seen, graph):
        alike.setdefault(_likeness(chain, graph), []).append(chain)
    for chain, *more in alike.values():
        tids = list(dict.fromkeys([edge.tid for edge in chain.edges] + [chain.end]))
        threads = [graph.threads[tid] for tid in tids if tid in graph.threads]
        steps = [thread.innermost for thread in threads if thread.innermost is not None]
        evidence = tuple(text for thread in threads if thread.wait for text in thread.wait.evidence)
        expected = graph.wait_chain(chain.end, chain.tids) if not more else None
        text = sentences.blocked(chain, graph, len(more), expected)
        tids = list(dict.fromkeys([*tids, *(expected.tids if expected is not None else ())]))
        tids += [other.end for other in more]
        yield Finding(
            FindingKind.BLOCKED,
            text,
            tuple(tids),
            evidence,
            steps[-1] if steps else None,
            wait=graph.threads[chain.end].wait,
        )


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


def _stopped(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    main = seen.main
    if seen.stop is not None and main is not None:
        text = sentences.stopped(seen.pid, seen.stop)
        yield Finding(FindingKind.STOPPED, text, (main.tid,), step=main.innermost, stop=seen.stop)


def _starved(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    yield from _explained(seen, FindingKind.STARVED, starves=True)


def _slow(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    yield from _explained(seen, FindingKind.SLOW, starves=False)


def _explained(seen: Observations, kind: FindingKind, starves: bool) -> Iterator[Finding]:
    """The finding that proven explanations make, the weightiest of them first."""
    slowness = seen.slowness
    found = [each for each in slowness.explanations if each.proven] if slowness is not None else []
    found = [each for each in found if each.starves == starves]
    if slowness is None or not found or seen.stop is not None:
        return
    running = sorted(
        (thread for thread in seen.threads if thread.state is RunState.RUNNING), key=lambda each: not each.dispatch
    )
    thread = next(iter(running), seen.main)
    told = [text for each in found for text in each.for_]
    around = slowness.machine.found
    evidence = (*told, *(around.files if around is not None else ()))
    yield Finding(
        kind,
        sentences.slowed(kind, [each.summary for each in found], thread),
        (thread.tid,) if thread else (),
        evidence,
        thread.innermost if thread is not None else None,
        cures=tuple(each.cure for each in found if each.cure),
    )


def _kernel_waits(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """Threads that others need, or that the user came for, and that sleep in the kernel for no lock of the process."""
    waiters = graph.waiters()
    for thread in seen.threads:
        side = thread.wait.kernel if thread.wait is not None else None
        if thread.wait is None or side is None or not side.stands:
            continue
        theirs = [graph.threads[tid] for tid in waiters.get(thread.tid, ())]
        if theirs or thread.dispatch or thread.tid == seen.pid:
            text = sentences.kernel_wait(thread, thread.wait, side, theirs)
            tids = (thread.tid, *(each.tid for each in theirs))
            step = thread.innermost
            yield Finding(FindingKind.KERNEL_WAIT, text, tids, thread.wait.evidence, step, wait=thread.wait)


def _gil_in_device_call(seen: Observations, _graph: WaitGraph) -> Iterator[Finding]:
    """A thread waits for a device and keeps the GIL meanwhile, which others want."""
    for thread in seen.threads:
        waiters = _want_gil_in_device_call(thread, seen.threads)
        if waiters and thread.wait is not None:
            text = sentences.gil_in_device_call(thread, thread.wait, waiters)
            tids = (thread.tid, *(each.tid for each in waiters))
            evidence = (*thread.wait.evidence, "the interpreter records it as the GIL's holder")
            yield Finding(FindingKind.GIL_IN_DEVICE_CALL, text, tids, evidence, thread.innermost, wait=thread.wait)


def _want_gil_in_device_call(holder: ThreadReport, threads: Sequence[ThreadReport]) -> list[ThreadReport]:
    """The threads that wait for the GIL, where ``holder`` has it while it waits for a device."""
    wait = holder.wait
    if wait is None or wait.device is None or not wait.device.holds_gil:
        return []
    return [
        each
        for each in threads
        if each.wait is not None
        and each.wait.kind is WaitKind.GIL
        and not each.wait.being_released
        and holder.tid in each.wait.owner_tids
    ]


def _external(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    kind = FindingKind.WAITING_EXTERNAL
    for thread, wait in external_waits(seen):
        if _want_gil_in_device_call(thread, seen.threads):
            continue  # a finding of its own
        if thread.tid == seen.pid and wait.kernel is not None and wait.kernel.stands:
            continue  # the stronger finding says it
        if is_stuck(thread, seen) or is_unwoken(thread):
            continue  # so do those
        crowd = _crowd(seen.threads) if _serves(thread, wait) else []
        text = sentences.external(thread, wait)
        text = f"{sentences.crowd(crowd)} {text}" if crowd else text
        tids = (*(each.tid for each in crowd), thread.tid)
        groups = bystanders(seen, tids) if not crowd and thread is seen.main and wait.kind is WaitKind.IO else []
        text += sentences.meanwhile(groups, graph.threads)
        tids = (*tids, *(group[0].tid for group in groups))
        in_loop = thread.loop is not None and thread.loop.awaits_nothing_outside and wait.kind is WaitKind.IO
        yield Finding(kind, text, tids, wait.evidence, thread.innermost, wait=wait, in_loop=in_loop)


_CROWD = 4
"""Threads that wait at one line, from which on they are what a server has no more of, rather than work on its way."""


def _serves(thread: ThreadReport, wait: Wait) -> bool:
    """The thread waits for what others send it to do: clients that connect, or events of its loop."""
    return wait.kind is WaitKind.IO and (thread.loop is not None or (wait.peer is not None and wait.peer.is_listening))


def _crowd(threads: Sequence[ThreadReport]) -> list[ThreadReport]:
    """The most threads that wait for the same kind of thing at the same line of the program, with no end in sight."""
    return next((group for group in _at_one_line(threads) if len(group) >= _CROWD), [])


def _at_one_line(threads: Sequence[ThreadReport]) -> list[list[ThreadReport]]:
    """The threads that wait at lines of the program's own files, those at one line for one kind of thing together:
    first those that hold what others want, then those that a thread of the process must let go on, then the most;
    waits for a time come last."""
    alike: dict[object, list[ThreadReport]] = {}
    for thread in threads:
        wait = thread.wait
        if wait is not None and (thread.stands or _wants_of_others(thread)) and not _asks_itself(wait):
            alike.setdefault((thread.user_line, wait.kind), []).append(thread)
    return sorted(alike.values(), key=_telling)


def _telling(group: Sequence[ThreadReport]) -> tuple[bool, bool, bool, int]:
    return not _holds(group), not group[0].stands, not _needs_thread(group[0]), -len(group)


def _wants_of_others(thread: ThreadReport) -> bool:
    """It waits for a time at a line of the program for what threads give: a connection of a pool, say."""
    waits = thread.state is RunState.WAITING and bool(thread.user_line) and _needs_thread(thread)
    return waits and thread.wait is not None and not thread.wait.being_released


def _asks_itself(wait: Wait) -> bool:
    """It waits for an answer of its own process: others are the reason."""
    return wait.kind is WaitKind.IO and wait.peer is not None and wait.peer.own


def _holds(threads: Sequence[ThreadReport]) -> bool:
    """One of them has a lock that others wait for."""
    return any(resource.kind is not WaitKind.GIL for thread in threads for resource in thread.holds)


def _needs_thread(thread: ThreadReport) -> bool:
    return thread.wait is not None and thread.wait.kind.traits.needs_thread


_BYSTANDERS = 2
"""Groups of threads besides those of the verdict that it names."""


def bystanders(seen: Observations, involved: Sequence[int]) -> list[list[ThreadReport]]:
    """Threads besides the ``involved`` ones that stand in the program's own files, those at one line together."""
    others = [thread for thread in seen.threads if thread.tid not in involved and thread is not seen.main]
    return _at_one_line(others)[:_BYSTANDERS]


def _main(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    """The main thread waits for another process, though only a thread of this one, or a loop, stands between them."""
    main = seen.main
    if main is None or main.wait is None or main.state is RunState.IDLE:
        return
    wait_chain = graph.wait_chain(main.tid)
    end = graph.threads[wait_chain.end].wait
    if end is None or not leads_outside(end) or not (wait_chain.edges or end.looks_for or end.refused):
        return
    evidence = tuple(text for tid in wait_chain.tids for text in _evidence(graph.threads[tid]))
    text = f"{sentences.wait_chain(wait_chain, graph)}."
    step = next(
        (thread.innermost for thread in map(graph.threads.__getitem__, wait_chain.tids) if thread.dispatch), None
    )
    yield Finding(FindingKind.WAITING_EXTERNAL, text, wait_chain.tids, evidence, step, wait=end)


def _evidence(thread: ThreadReport) -> tuple[str, ...]:
    return thread.wait.evidence if thread.wait is not None else ()


def _busy(seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
    for thread in busy_threads(seen, graph):
        step = thread.dispatch[0]
        yield Finding(FindingKind.BUSY, sentences.busy(thread, step), (thread.tid,), step=step)


RULES: tuple[Rule, ...] = (
    _crashes,
    _recursions,
    _deadlocks,
    _task_deadlocks,
    _stuck_loops,
    _unwoken_loops,
    _self_deadlocks,
    _orphans,
    _missing_workers,
    _lost_threads,
    _blocked,
    _main,
    _external,
    _busy,
    _kernel_waits,
    _stopped,
    _gil_in_device_call,
    _starved,
    _slow,
)
"""The rules in any order: findings are ranked by their kind."""
