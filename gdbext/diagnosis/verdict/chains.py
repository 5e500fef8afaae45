"""Questions to the observations that several rules ask: which chains of waits no thread will end, which threads resume,
and what comes from outside of the process. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.graph import Chain, ChainEnd, ChainTail, Observations, WaitGraph


def blocked_chains(seen: Observations, graph: WaitGraph) -> Iterator[Chain]:
    """Chains that lead to a wait which no thread of the process is known to end; the most significant one first, and
    one for each end: chains that share their end are one finding."""
    anybody_runs = any(thread.state is RunState.RUNNING for thread in seen.threads)
    nobody_can_wake = seen.complete and nobody_goes_on(seen.threads)
    starts: dict[int, tuple[tuple[int, ...], int]] = {}
    for thread, _ in seen.waits:
        if thread.state is RunState.IDLE:
            continue
        tail = graph.tail(thread.tid)
        if _is_blocked(thread, tail, graph, seen.pid, anybody_runs, nobody_can_wake):
            rank = (not thread.dispatch, thread.tid != seen.pid, -tail.length)
            starts[tail.end] = min(starts.get(tail.end, (rank, thread.tid)), (rank, thread.tid), key=itemgetter(0))
    for _, tid in sorted(starts.values(), key=itemgetter(0)):
        yield graph.chain(tid)


def _is_blocked(
    thread: ThreadReport, tail: ChainTail, graph: WaitGraph, pid: int, anybody_runs: bool, nobody_can_wake: bool
) -> bool:
    """The chain's last wait has no known owner (or is timed), nothing outside of the process ends it, and the thread is
    inside an operator or a node of autograd, or a lock is in the chain, or no thread can wake it. The end of a chain
    with a lock may be a sleep of at least 5 s: a shorter one is a pause between two steps of work."""
    end = graph.threads.get(tail.end)
    if not end or not end.wait or end.state is RunState.IDLE:
        return False
    traits = end.wait.kind.traits
    if tail.reason not in (ChainEnd.UNKNOWN, ChainEnd.TIMED) or traits.is_outside:
        return False
    if tail.reason is ChainEnd.UNKNOWN and traits.needs_thread and anybody_runs:
        return False
    if thread.dispatch or thread.backward:
        return True
    if tail.reason is ChainEnd.TIMED:
        return tail.has_lock and (end.wait.detail.seconds or 0) >= 5
    return tail.has_lock or (nobody_can_wake and not _a_signal_may_end_it(end, pid))


def nobody_goes_on(threads: Sequence[ThreadReport]) -> bool:
    """Every thread waits for another thread of this process: none will ever wake any."""
    return not any(map(may_wake_others, threads))


def may_wake_others(thread: ThreadReport) -> bool:
    """The thread will resume without any thread of this process, and may then wake others."""
    wait = thread.wait
    if not wait:
        return True
    if thread.state is RunState.IDLE and not wait.resource.address:
        return True  # it waits for the system (a pipe, a socket), or spins
    return wait.being_released or wait.external or wait.ends_by_itself or not wait.kind.traits.needs_thread


def _a_signal_may_end_it(thread: ThreadReport, pid: int) -> bool:
    """The main thread waits for what a signal handler may give. Python runs handlers there, also while it waits for
    an event; in C, sem_post is the one of these functions that a handler may call (signal-safety(7))."""
    wait = thread.wait
    if not wait or thread.tid != pid:
        return False
    return wait.kind.traits.handler_may_end_it or (wait.detail.set_by_handlers and bool(thread.python_frames))


def external_waits(seen: Observations) -> list[tuple[ThreadReport, Wait]]:
    """Threads that wait for a peer, a device, a child or (the main thread) for input; the most significant wait
    first."""
    rows = []
    for thread, wait in seen.waits:
        if thread.state is RunState.IDLE or wait.being_released:
            continue
        if wait.timed and thread.loop and thread.loop.only_sleeps:
            continue  # as a thread in time.sleep()
        is_main, shared = thread.tid == seen.pid, wait.external and not wait.ends_by_itself
        if wait.kind.traits.is_outside or (is_main and (wait.kind is WaitKind.IO or shared)):
            rows.append((wait.kind.priority, not is_main, thread, wait))
    rows.sort(key=itemgetter(0, 1))
    return [(thread, wait) for _, _, thread, wait in rows]


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
    """The threads that wait at lines of the program's own files, grouped by line and kind of wait: first those that
    hold what others want, then those that a thread of the process must wake, then the largest groups; timed waits
    last."""
    groups: dict[object, list[ThreadReport]] = {}
    for thread in threads:
        wait = thread.wait
        if not wait or (wait.kind is WaitKind.IO and wait.detail.peer and wait.detail.peer.own):
            continue  # it waits for an answer of its own process: others are the reason
        at_line = thread.state is RunState.WAITING and bool(thread.user_line) and not wait.being_released
        if thread.stands or (at_line and wait.kind.traits.needs_thread):  # for a connection of a pool, say
            groups.setdefault((thread.user_line, wait.kind), []).append(thread)

    def rank(group: Sequence[ThreadReport]) -> tuple[bool, bool, bool, int]:
        held = [resource for thread in group for resource in thread.holds if resource.kind is not WaitKind.GIL]
        needs_thread = group[0].wait is not None and group[0].wait.kind.traits.needs_thread
        return not held, not group[0].stands, not needs_thread, -len(group)

    return sorted(groups.values(), key=rank)


def bystanders(seen: Observations, involved: Sequence[int]) -> list[list[ThreadReport]]:
    """Up to two groups of threads besides the ``involved`` ones that wait in the program's own files, by line."""
    others = [thread for thread in seen.threads if thread.tid not in involved and thread is not seen.main]
    return at_one_line(others)[:2]
