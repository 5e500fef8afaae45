"""Who is stuck without a cycle: blocked chains, waits for the outside, and what cannot be known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.model.thread import RunState, ThreadReport
from gdbext.model.wait_kind import WaitKind
from gdbext.verdict import phrasing
from gdbext.verdict.graph import Chain, ChainEnd, Edge, WaitGraph

LONG_SLEEP = 5.0
"""Seconds from which a sleep with a lock that others want is no pause between two steps of work."""
_SET_BY_HANDLERS = frozenset({"threading.Event", "threading.Condition", "queue.SimpleQueue"})
"""Python objects that programs set in signal handlers while their main thread waits."""


def main_thread(threads: Sequence[ThreadReport], pid: int) -> ThreadReport | None:
    """The thread whose tid is the process's (or the first)."""
    return next((thread for thread in threads if thread.tid == pid), threads[0] if threads else None)


def blocked_chains(
    threads: Sequence[ThreadReport], graph: WaitGraph, pid: int, complete: bool = True
) -> Iterator[Chain]:
    """Chains that lead to a wait which no thread of the process is known to end; the most telling one first.

    One chain for each end: chains that share their end are one finding. ``complete``: no thread is missing.
    """
    runs = any(thread.state is RunState.RUNNING for thread in threads)
    hopeless = complete and nobody_goes_on(threads)
    chains: dict[int, tuple[tuple[int, ...], Chain]] = {}
    for thread in threads:
        if thread.wait is None or thread.state is RunState.IDLE:
            continue
        chain = graph.chain(thread.tid)
        if not _is_blocked(thread, chain, graph, pid, runs, hopeless):
            continue
        rank = (not thread.dispatch, thread.tid != pid, -len(chain.edges))
        if chain.end not in chains or rank < chains[chain.end][0]:
            chains[chain.end] = (rank, chain)
    for _, chain in sorted(chains.values(), key=lambda item: item[0]):
        yield chain


def _is_blocked(thread: ThreadReport, chain: Chain, graph: WaitGraph, pid: int, runs: bool, hopeless: bool) -> bool:
    end = graph.threads.get(chain.end)
    if (
        chain.reason not in (ChainEnd.UNKNOWN, ChainEnd.TIMED)
        or end is None
        or end.wait is None
        or end.state is RunState.IDLE
    ):
        return False
    traits = end.wait.kind.traits
    if traits.is_outside:
        return False
    if chain.reason is ChainEnd.UNKNOWN and traits.needs_thread and runs:
        return False
    if thread.dispatch:
        return True
    needed = any(edge.wait.kind.traits.is_lock for edge in chain.edges)
    if chain.reason is ChainEnd.TIMED:
        return needed and (end.wait.seconds or 0) >= LONG_SLEEP
    return needed or (hopeless and not a_signal_may_end_it(end, pid))


def nobody_goes_on(threads: Sequence[ThreadReport]) -> bool:
    """Every thread waits for another thread of this process: nobody will ever wake anybody."""
    return not any(map(_may_wake_others, threads))


def _may_wake_others(thread: ThreadReport) -> bool:
    """The thread will go on without any thread of this process, and may then let others go on."""
    wait = thread.wait
    if wait is None:
        return True
    if thread.state is RunState.IDLE and not wait.resource.address:
        return True  # it waits for the system (a pipe, a socket), or spins
    return wait.handover or wait.external or wait.ends_by_itself or not wait.kind.traits.needs_thread


def a_signal_may_end_it(thread: ThreadReport, pid: int) -> bool:
    """The main thread waits for what a signal handler may give: Python runs handlers there, also while it waits for
    an event; in C, sem_post is the one of these functions that a handler may call (signal-safety(7))."""
    wait = thread.wait
    if wait is None or thread.tid != pid:
        return False
    if wait.kind.traits.handler_may_end_it:
        return True
    return bool(thread.python) and wait.resource.name in _SET_BY_HANDLERS


def chain_sentence(chain: Chain, graph: WaitGraph) -> str:
    """The chain from its first thread to its end, in one sentence."""
    parts = [_link(edge, graph) for edge in chain.edges]
    end = graph.threads[chain.end]
    parts.append(f"{phrasing.who(end)} {phrasing.waiting(end.wait)}{_end(end)}" if end.wait else end.label)
    return "; ".join(parts) + "."


def _link(edge: Edge, graph: WaitGraph) -> str:
    thread = graph.threads[edge.tid]
    return f"{phrasing.who(thread)} {phrasing.waiting(edge.wait)}{phrasing.owner_clause(edge.wait, graph.threads)}"


def _end(end: ThreadReport) -> str:
    wait = end.wait
    if wait is None:
        return ""
    if wait.ends_by_itself:
        return " (a timed wait: it ends by itself)" if wait.kind is not WaitKind.SLEEP else ""
    if wait.kind.traits.is_lock:
        return ", whose owner is not known"
    if not wait.kind.traits.needs_thread:
        return ""
    return ", and no thread is known that would wake it"


def external_waiters(threads: Sequence[ThreadReport], pid: int) -> Iterator[ThreadReport]:
    """Threads that wait for a peer, a device, a child or (the main thread) for input."""
    found = []
    for thread in threads:
        if thread.wait is None or thread.state is RunState.IDLE or thread.wait.handover:
            continue
        kind, is_main = thread.wait.kind, thread.tid == pid
        shared = thread.wait.external and not thread.wait.ends_by_itself
        if kind.traits.is_outside or (is_main and (kind is WaitKind.IO or shared)):
            found.append((kind.priority, not is_main, thread))
    found.sort(key=lambda item: item[:2])
    yield from (thread for _, _, thread in found)


def busy_threads(threads: Sequence[ThreadReport], graph: WaitGraph, pid: int) -> Iterator[ThreadReport]:
    """Threads inside the dispatcher that run, then those that wait for something that runs."""
    inside = [thread for thread in threads if thread.dispatch]
    runs = any(thread.state is RunState.RUNNING for thread in threads)
    running = [thread for thread in inside if thread.state is RunState.RUNNING]
    waiting = [thread for thread in inside if thread.state is RunState.WAITING and _goes_on(thread, graph, runs)]
    for group in (running, waiting):
        yield from sorted(group, key=lambda thread: (thread.tid != pid, thread.tid))


def _goes_on(thread: ThreadReport, graph: WaitGraph, runs: bool) -> bool:
    reason = graph.chain(thread.tid).reason
    if reason in (ChainEnd.RUNNING, ChainEnd.HANDOVER):
        return True
    return reason is ChainEnd.UNKNOWN and runs


def uncertainties(threads: Sequence[ThreadReport], graph: WaitGraph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What forbids to say "no deadlock": locks whose owner nobody records, futexes of unknown meaning."""
    for thread in threads:
        wait = thread.wait
        if wait is None or wait.handover or thread.state is RunState.IDLE or wait.ends_by_itself:
            continue
        if wait.owners or wait.missing or not wait.kind.traits.may_be_lock:
            continue
        text = (
            f"{thread.label} {phrasing.waiting(wait)}, and its owner is not recorded in memory: "
            "a deadlock through it cannot be excluded."
        )
        yield text, (thread.tid,)
    yield from _sleeping_holders(threads, graph)
    for cycle in graph.cycles(with_timed=True):
        timed = [edge for edge in cycle if edge.wait.ends_by_itself]
        if timed:
            names = phrasing.listed([graph.threads[edge.tid].label for edge in cycle])
            breaker = graph.threads[timed[0].tid].label
            text = f"{names} wait for each other, but the wait of {breaker} is timed and ends by itself."
            yield text, tuple(edge.tid for edge in cycle)


def _sleeping_holders(threads: Sequence[ThreadReport], graph: WaitGraph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Threads that sleep, for a time that a core does not tell, with the GIL in hand and others waiting for it."""
    waiting: dict[int, int] = {}
    for thread in threads:
        if thread.wait is not None and thread.wait.kind is WaitKind.GIL and thread.wait.owner is not None:
            waiting[thread.wait.owner.tid] = waiting.get(thread.wait.owner.tid, 0) + 1
    for tid, count in waiting.items():
        holder = graph.threads.get(tid)
        wait = holder.wait if holder is not None else None
        if holder is not None and wait is not None and wait.kind is WaitKind.SLEEP and wait.seconds is None:
            others = "a thread waits" if count == 1 else f"{count} threads wait"
            yield f"{holder.label} {phrasing.waiting(wait)} with the GIL in hand, for which {others}.", (tid,)
