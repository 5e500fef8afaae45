"""Questions to the observations that several rules ask: which chains of waits nobody will end, who goes on, and what
comes from outside of the process, and who else waits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.graph import Chain, ChainEnd, ChainTail, Observations, WaitGraph

LONG_SLEEP = 5.0
"""Seconds from which a sleep with a lock that others want is not a pause between two steps of work."""


def blocked_chains(seen: Observations, graph: WaitGraph) -> Iterator[Chain]:
    """Chains that lead to a wait which no thread of the process is known to end; the most telling one first.

    One chain for each end: chains that share their end are one finding.
    """
    runs = any(thread.state is RunState.RUNNING for thread in seen.threads)
    hopeless = seen.complete and nobody_goes_on(seen.threads)
    starts: dict[int, tuple[tuple[int, ...], int]] = {}
    for thread, _ in seen.waits:
        if thread.state is RunState.IDLE:
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
    if not end or not end.wait or end.state is RunState.IDLE:
        return False
    traits = end.wait.kind.traits
    if tail.reason not in (ChainEnd.UNKNOWN, ChainEnd.TIMED) or traits.is_outside:
        return False
    if tail.reason is ChainEnd.UNKNOWN and traits.needs_thread and runs:
        return False
    if thread.dispatch or thread.backward:
        return True
    if tail.reason is ChainEnd.TIMED:
        return tail.has_lock and (end.wait.detail.seconds or 0) >= LONG_SLEEP
    return tail.has_lock or (hopeless and not a_signal_may_end_it(end, pid))


def nobody_goes_on(threads: Sequence[ThreadReport]) -> bool:
    """Every thread waits for another thread of this process: nobody will ever wake anybody."""
    return not any(map(may_wake_others, threads))


def may_wake_others(thread: ThreadReport) -> bool:
    """The thread will go on without any thread of this process, and may then let others go on."""
    wait = thread.wait
    if not wait:
        return True
    if thread.state is RunState.IDLE and not wait.resource.address:
        return True  # it waits for the system (a pipe, a socket), or spins
    return wait.being_released or wait.external or wait.ends_by_itself or not wait.kind.traits.needs_thread


def a_signal_may_end_it(thread: ThreadReport, pid: int) -> bool:
    """The main thread waits for what a signal handler may give. Python runs handlers there, also while it waits for
    an event; in C, sem_post is the one of these functions that a handler may call (signal-safety(7))."""
    wait = thread.wait
    if not wait or thread.tid != pid:
        return False
    return wait.kind.traits.handler_may_end_it or (wait.detail.set_by_handlers and bool(thread.python_frames))


def external_waits(seen: Observations) -> Iterator[tuple[ThreadReport, Wait]]:
    """Threads that wait for a peer, a device, a child or (the main thread) for input; the most telling wait first."""
    found = []
    for thread, wait in seen.waits:
        if thread.state is RunState.IDLE or wait.being_released:
            continue
        if wait.timed and thread.loop and thread.loop.only_sleeps:
            continue  # as a thread in time.sleep()
        is_main, shared = thread.tid == seen.pid, wait.external and not wait.ends_by_itself
        if wait.kind.traits.is_outside or (is_main and (wait.kind is WaitKind.IO or shared)):
            found.append((wait.kind.priority, not is_main, thread, wait))
    found.sort(key=lambda item: item[:2])
    yield from ((thread, wait) for _, _, thread, wait in found)


def busy_threads(seen: Observations, graph: WaitGraph) -> Iterator[ThreadReport]:
    """Threads inside the dispatcher that run, then those that wait for something that runs."""
    inside = [thread for thread in seen.threads if thread.dispatch]
    runs = any(thread.state is RunState.RUNNING for thread in seen.threads)
    ends = (ChainEnd.RUNNING, ChainEnd.HANDOVER, *((ChainEnd.UNKNOWN,) if runs else ()))
    running = [thread for thread in inside if thread.state is RunState.RUNNING]
    waiting = [each for each in inside if each.state is RunState.WAITING and graph.tail(each.tid).reason in ends]
    for group in (running, waiting):
        yield from sorted(group, key=lambda thread: (thread.tid != seen.pid, thread.tid))


def at_one_line(threads: Sequence[ThreadReport]) -> list[list[ThreadReport]]:
    """The threads that wait at lines of the program's own files, those at one line for one kind of thing together:
    first those that hold what others want, then those that a thread of the process must let go on, then the most;
    waits for a time come last."""
    alike: dict[object, list[ThreadReport]] = {}
    for thread in threads:
        wait = thread.wait
        if not wait or (wait.kind is WaitKind.IO and wait.detail.peer and wait.detail.peer.own):
            continue  # it waits for an answer of its own process: others are the reason
        at_line = thread.state is RunState.WAITING and bool(thread.user_line) and not wait.being_released
        if thread.stands or (at_line and wait.kind.traits.needs_thread):  # for a connection of a pool, say
            alike.setdefault((thread.user_line, wait.kind), []).append(thread)

    def rank(group: Sequence[ThreadReport]) -> tuple[bool, bool, bool, int]:
        held = [resource for thread in group for resource in thread.holds if resource.kind is not WaitKind.GIL]
        needs_thread = group[0].wait is not None and group[0].wait.kind.traits.needs_thread
        return not held, not group[0].stands, not needs_thread, -len(group)

    return sorted(alike.values(), key=rank)


_BYSTANDERS = 2
"""Groups of threads besides those of the verdict that it names."""


def bystanders(seen: Observations, involved: Sequence[int]) -> list[list[ThreadReport]]:
    """Threads besides the ``involved`` ones that stand in the program's own files, those at one line together."""
    others = [thread for thread in seen.threads if thread.tid not in involved and thread is not seen.main]
    return at_one_line(others)[:_BYSTANDERS]
