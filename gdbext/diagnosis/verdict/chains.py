"""Questions to the observations that several rules ask: which chains of waits nobody will end, who goes on, and what
comes from outside of the process. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import Refused, Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.graph import Chain, ChainEnd, ChainTail, Observations, WaitGraph

LONG_SLEEP = 5.0
"""Seconds from which a sleep with a lock that others want is not a pause between two steps of work."""


def blocked_chains(seen: Observations, graph: WaitGraph) -> Iterator[Chain]:
    """Chains that lead to a wait which no thread of the process is known to end; the most telling one first.

    One chain for each end: chains that share their end are one finding.
    """
    runs = _anybody_runs(seen.threads)
    hopeless = seen.complete and nobody_goes_on(seen.threads)
    starts: dict[int, tuple[tuple[int, ...], int]] = {}
    for thread in seen.threads:
        if thread.wait is None or thread.state is RunState.IDLE:
            continue
        tail = graph.tail(thread.tid)
        if not _is_blocked(thread, tail, graph, seen.pid, runs, hopeless):
            continue
        rank = (not thread.dispatch, thread.tid != seen.pid, -tail.length)
        if tail.end not in starts or rank < starts[tail.end][0]:
            starts[tail.end] = (rank, thread.tid)
    for _, tid in sorted(starts.values(), key=lambda item: item[0]):
        yield graph.chain(tid)


def _is_blocked(thread: ThreadReport, tail: ChainTail, graph: WaitGraph, pid: int, runs: bool, hopeless: bool) -> bool:
    end = graph.threads.get(tail.end)
    if end is None or end.wait is None or end.state is RunState.IDLE:
        return False
    traits = end.wait.kind.traits
    if tail.reason not in (ChainEnd.UNKNOWN, ChainEnd.TIMED) or traits.is_outside:
        return False
    if tail.reason is ChainEnd.UNKNOWN and traits.needs_thread and runs:
        return False
    if thread.dispatch or thread.backward:
        return True
    if tail.reason is ChainEnd.TIMED:
        return tail.has_lock and (end.wait.seconds or 0) >= LONG_SLEEP
    return tail.has_lock or (hopeless and not a_signal_may_end_it(end, pid))


def nobody_goes_on(threads: Sequence[ThreadReport]) -> bool:
    """Every thread waits for another thread of this process: nobody will ever wake anybody."""
    return not any(map(may_wake_others, threads))


def may_wake_others(thread: ThreadReport) -> bool:
    """The thread will go on without any thread of this process, and may then let others go on."""
    wait = thread.wait
    if wait is None:
        return True
    if thread.state is RunState.IDLE and not wait.resource.address:
        return True  # it waits for the system (a pipe, a socket), or spins
    return wait.being_released or wait.external or wait.ends_by_itself or not wait.kind.traits.needs_thread


def a_signal_may_end_it(thread: ThreadReport, pid: int) -> bool:
    """The main thread waits for what a signal handler may give. Python runs handlers there, also while it waits for
    an event; in C, sem_post is the one of these functions that a handler may call (signal-safety(7))."""
    wait = thread.wait
    if wait is None or thread.tid != pid:
        return False
    return wait.kind.traits.handler_may_end_it or (wait.set_by_handlers and bool(thread.python_frames))


def external_waits(seen: Observations) -> Iterator[tuple[ThreadReport, Wait]]:
    """Threads that wait for a peer, a device, a child or (the main thread) for input; the most telling wait first."""
    found = []
    for thread in seen.threads:
        wait = thread.wait
        if wait is None or thread.state is RunState.IDLE or wait.being_released:
            continue
        if wait.timed and thread.loop is not None and thread.loop.only_sleeps:
            continue  # as a thread in time.sleep()
        is_main, shared = thread.tid == seen.pid, wait.external and not wait.ends_by_itself
        if wait.kind.traits.is_outside or (is_main and (wait.kind is WaitKind.IO or shared)):
            found.append((wait.kind.priority, not is_main, thread, wait))
    found.sort(key=lambda item: item[:2])
    yield from ((thread, wait) for _, _, thread, wait in found)


def leads_outside(wait: Wait) -> bool:
    """Another process, a peer, a file or input ends the wait, or what a loop looks at."""
    if wait.refused is Refused.PEER:
        return True
    if wait.looks_for and not wait.expects:
        return bool(wait.children) or wait.looks_outside or wait.meets_others
    return wait.kind.traits.is_outside or wait.kind is WaitKind.IO or (wait.external and not wait.ends_by_itself)


def busy_threads(seen: Observations, graph: WaitGraph) -> Iterator[ThreadReport]:
    """Threads inside the dispatcher that run, then those that wait for something that runs."""
    inside = [thread for thread in seen.threads if thread.dispatch]
    runs = _anybody_runs(seen.threads)
    running = [thread for thread in inside if thread.state is RunState.RUNNING]
    waiting = [thread for thread in inside if thread.state is RunState.WAITING and _goes_on(thread, graph, runs)]
    for group in (running, waiting):
        yield from sorted(group, key=lambda thread: (thread.tid != seen.pid, thread.tid))


def _anybody_runs(threads: Sequence[ThreadReport]) -> bool:
    return any(thread.state is RunState.RUNNING for thread in threads)


def _goes_on(thread: ThreadReport, graph: WaitGraph, runs: bool) -> bool:
    reason = graph.tail(thread.tid).reason
    if reason in (ChainEnd.RUNNING, ChainEnd.HANDOVER):
        return True
    return reason is ChainEnd.UNKNOWN and runs
