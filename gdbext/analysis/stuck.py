"""Who is stuck without a cycle: blocked chains, waits for the outside, and what cannot be known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.analysis import words
from gdbext.analysis.facts import ThreadFacts
from gdbext.analysis.graph import Chain, Edge, WaitGraph, ends_by_itself

OUTSIDE = frozenset({"collective", "device", "child-process"})
"""What ends these waits is another process or a device, wherever in the program they happen."""

LOCKS = frozenset({"gil", "mutex", "rwlock", "python-lock", "static-init", "once", "loader-lock", "libc-lock"})
"""Locks proper: while one is waited for, some thread holds it."""

_NO_THREAD_NEEDED = frozenset({"io", "sleep"}) | OUTSIDE


def main_thread(threads: Sequence[ThreadFacts], pid: int) -> ThreadFacts | None:
    """The thread whose tid is the process's (or the first)."""
    return next((thread for thread in threads if thread.tid == pid), threads[0] if threads else None)


def blocked_chains(threads: Sequence[ThreadFacts], graph: WaitGraph, pid: int) -> Iterator[Chain]:
    """Chains that lead to a wait which no thread of the process is known to end; the most telling one first.

    One chain for each end: chains that share their end are one finding.
    """
    runs = any(thread.state == "running" for thread in threads)
    hopeless = not runs and not any(map(_may_wake_others, threads))
    chains: dict[int, tuple[tuple[int, ...], Chain]] = {}
    for thread in threads:
        if thread.wait is None or thread.state == "idle":
            continue
        chain = graph.chain(thread.tid)
        if not _is_blocked(thread, chain, graph, runs, hopeless):
            continue
        rank = (not thread.dispatch, thread.tid != pid, -len(chain.edges))
        if chain.end not in chains or rank < chains[chain.end][0]:
            chains[chain.end] = (rank, chain)
    for _, chain in sorted(chains.values(), key=lambda item: item[0]):
        yield chain


def _is_blocked(thread: ThreadFacts, chain: Chain, graph: WaitGraph, runs: bool, hopeless: bool) -> bool:
    end = graph.threads.get(chain.end)
    if chain.reason not in ("unknown", "timed") or end is None or end.wait is None or end.state == "idle":
        return False
    kind = end.wait.resource.kind
    if kind in OUTSIDE:
        return False
    if chain.reason == "unknown" and kind not in _NO_THREAD_NEEDED and runs:
        return False
    if thread.dispatch:
        return True
    if chain.reason == "timed":
        return False
    needed = any(edge.wait.resource.kind in LOCKS for edge in chain.edges)
    return needed or (hopeless and kind in LOCKS)


def _may_wake_others(thread: ThreadFacts) -> bool:
    """The thread will go on without any thread of this process, and may then let others go on."""
    wait = thread.wait
    if wait is None:
        return thread.state == "running"
    return wait.handover or ends_by_itself(wait) or wait.resource.kind in _NO_THREAD_NEEDED


def chain_sentence(chain: Chain, graph: WaitGraph) -> str:
    """The chain from its first thread to its end, in one sentence."""
    parts = [_link(edge, graph) for edge in chain.edges]
    end = graph.threads[chain.end]
    parts.append(f"{words.who(end)} {words.waiting(end.wait)}{_end(end)}" if end.wait else end.label)
    return "; ".join(parts) + "."


def _link(edge: Edge, graph: WaitGraph) -> str:
    thread = graph.threads[edge.tid]
    return f"{words.who(thread)} {words.waiting(edge.wait)}{words.owner_clause(edge.wait, graph.threads)}"


def _end(end: ThreadFacts) -> str:
    wait = end.wait
    if wait is None:
        return ""
    if ends_by_itself(wait):
        return " (a timed wait: it ends by itself)" if wait.resource.kind != "sleep" else ""
    if wait.resource.kind in LOCKS:
        return ", whose owner is not known"
    if wait.resource.kind in _NO_THREAD_NEEDED:
        return ""
    return ", and no thread is known that would wake it"


def external_waiters(threads: Sequence[ThreadFacts], pid: int) -> Iterator[ThreadFacts]:
    """Threads that wait for a peer, a device, a child or (the main thread) for input."""
    found = []
    for thread in threads:
        if thread.wait is None or thread.state == "idle" or thread.wait.handover:
            continue
        kind = thread.wait.resource.kind
        if kind in OUTSIDE or (kind == "io" and thread.tid == pid):
            found.append(thread)
    order = ("collective", "device", "child-process", "io")
    found.sort(key=lambda thread: (order.index(thread.wait.resource.kind) if thread.wait else 9, thread.tid != pid))
    yield from found


def busy_threads(threads: Sequence[ThreadFacts], graph: WaitGraph, pid: int) -> Iterator[ThreadFacts]:
    """Threads inside the dispatcher that run, then those that wait for something that runs."""
    inside = [thread for thread in threads if thread.dispatch]
    runs = any(thread.state == "running" for thread in threads)
    running = [thread for thread in inside if thread.state == "running"]
    waiting = [thread for thread in inside if thread.state == "waiting" and _goes_on(thread, graph, runs)]
    for group in (running, waiting):
        yield from sorted(group, key=lambda thread: (thread.tid != pid, thread.tid))


def _goes_on(thread: ThreadFacts, graph: WaitGraph, runs: bool) -> bool:
    reason = graph.chain(thread.tid).reason
    if reason in ("running", "handover"):
        return True
    return reason == "unknown" and runs


def uncertainties(threads: Sequence[ThreadFacts], graph: WaitGraph) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What forbids to say "no deadlock": locks whose owner nobody records, futexes of unknown meaning."""
    for thread in threads:
        wait = thread.wait
        if wait is None or wait.handover or thread.state == "idle" or ends_by_itself(wait):
            continue
        if wait.owners or wait.missing or wait.resource.kind not in LOCKS | {"futex"}:
            continue
        text = (
            f"{thread.label} {words.waiting(wait)}, and its owner is not recorded in memory: "
            "a deadlock through it cannot be excluded."
        )
        yield text, (thread.tid,)
    for cycle in graph.cycles(with_timed=True):
        timed = [edge for edge in cycle if ends_by_itself(edge.wait)]
        if timed:
            names = words.listed([graph.threads[edge.tid].label for edge in cycle])
            breaker = graph.threads[timed[0].tid].label
            text = f"{names} wait for each other, but the wait of {breaker} is timed and ends by itself."
            yield text, tuple(edge.tid for edge in cycle)
