"""The observations for a verdict, their wait-for graph, and the questions that several rules ask of them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import islice
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import Wait, WaitEdge
from gdbext.diagnosis.report.wait_kind import WaitKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gdbext.diagnosis.report.finding import ProcessStop
    from gdbext.diagnosis.report.thread_report import AsyncTask, EventLoop
    from gdbext.diagnosis.verdict.crash import Crash
    from gdbext.diagnosis.verdict.recursion import Recursion
    from gdbext.diagnosis.verdict.slowness import Slowness


MAX_CYCLES = 64
"""More cycles than this are not listed: a reader needs one."""
_MAX_CYCLE_STEPS = 300_000
"""Edges walked for shorter cycles in large components; from then on only each component's lowest tid is tried."""


class ChainEnd(Enum):
    """The end of a chain of waits."""

    RUNNING = "the last thread runs"
    GONE = "the recorded owner is not a thread of this process"
    MISSING = "the workers that would end the wait do not exist"
    HANDOVER = "the last thread is about to be woken"
    TIMED = "the last wait ends by itself"
    UNKNOWN = "the last thread waits, and no thread is known to hold what it waits for"
    CYCLE = "the chain leads back into itself"
    ABSENT = "the owner could not be read"


class Chain(NamedTuple):
    """A chain of waits from one thread to its end; ``end`` is the id of the last thread."""

    edges: tuple[WaitEdge, ...]
    end: int
    reason: ChainEnd

    @property
    def tids(self) -> tuple[int, ...]:
        """All threads of the chain, each once, the first one first."""
        return tuple(dict.fromkeys([edge.tid for edge in self.edges] + [self.end]))


class ChainTail(NamedTuple):
    """A chain without its edges: their number (``length``), whether one is a lock; ``end``: tid of the last thread."""

    end: int
    reason: ChainEnd
    length: int
    has_lock: bool


class WaitGraph:
    """The wait-for graph: edges from waiting threads to owners. Linear in threads and edges; nothing recursive."""

    def __init__(self, threads: Iterable[ThreadReport]) -> None:
        """One edge from each waiting thread to each live owner, unless the resource is being released."""
        self.threads: dict[int, ThreadReport] = {thread.tid: thread for thread in threads}
        self.waiters: dict[int, list[int]] = {}
        """Thread id → ids of the threads that wait directly for something that it holds."""
        self._edges: dict[int, tuple[WaitEdge, ...]] = {}  # by the tid that waits
        self._tails: dict[int, ChainTail] = {}  # by the tid at which it begins
        for tid, thread in self.threads.items():
            wait = thread.wait if thread.wait and not thread.wait.being_released else None
            self._edges[tid] = tuple(WaitEdge(tid, owner, wait) for owner in wait.owner_tids) if wait else ()
            for edge in self._edges[tid]:
                if edge.held_by != tid:
                    self.waiters.setdefault(edge.held_by, []).append(tid)

    def edges_of(self, tid: int) -> tuple[WaitEdge, ...]:
        """The wait of thread ``tid``, one edge for each owner that is alive."""
        return self._edges.get(tid, ())

    def self_loops(self) -> list[WaitEdge]:
        """Edges of threads that wait for what they hold themselves."""
        edges = (edge for edges in self._edges.values() for edge in edges)
        return [edge for edge in edges if edge.held_by == edge.tid and not edge.wait.ends_by_itself]

    def cycles(self, with_timed: bool = False) -> list[tuple[WaitEdge, ...]]:
        """At most MAX_CYCLES cycles of two and more threads, each from its lowest tid on, the shortest first; one for
        each set of threads. Timed waits end by themselves and are left out unless ``with_timed``."""
        successors = {
            tid: [edge for edge in edges if with_timed or not edge.wait.ends_by_itself]
            for tid, edges in self._edges.items()
        }
        cycles: dict[frozenset[int], tuple[WaitEdge, ...]] = {}
        steps = 0
        for component in _components(successors):
            inside = sum(edge.held_by in component for tid in component for edge in successors[tid])
            is_ring = inside == len(component)
            for tid in sorted(component) if not is_ring and steps < _MAX_CYCLE_STEPS else [min(component)]:
                steps += inside
                if steps > _MAX_CYCLE_STEPS and steps > inside and tid != min(component):
                    break
                cycle = _shortest_cycle(tid, component, successors)
                if cycle:
                    cycles.setdefault(frozenset(edge.tid for edge in cycle), cycle)
                if len(cycles) >= MAX_CYCLES:
                    return list(cycles.values())
        return sorted(cycles.values(), key=len)

    def chain(self, tid: int) -> Chain:
        """The waits from thread ``tid`` on; of several owners one in the chain, else one that waits itself."""
        edges: list[WaitEdge] = []
        visited = {tid}
        while True:
            reason = self._end_reason(tid)
            if reason:
                return Chain(tuple(edges), tid, reason)
            choices = self.edges_of(tid)
            owners = [self.threads.get(edge.held_by) for edge in choices]
            waits = [owner.wait if owner else None for owner in owners]
            waiting = (edge for edge, wait in zip(choices, waits) if wait and not wait.being_released)
            edge = next((edge for edge in choices if edge.held_by in visited), None) or next(waiting, choices[0])
            edges.append(edge)
            tid = edge.held_by
            if tid in visited:
                return Chain(tuple(edges), tid, ChainEnd.CYCLE)
            visited.add(tid)

    def tail(self, tid: int) -> ChainTail:
        """chain() without its edges. Cached: linear time for all threads together if each waits for one other."""
        path: dict[int, WaitEdge] = {}
        at = tid
        while at not in self._tails:
            reason, edges = self._end_reason(at), self.edges_of(at)
            if reason or at in path:
                self._tails[at] = ChainTail(at, reason or ChainEnd.CYCLE, 0, has_lock=False)
            elif len(edges) > 1:  # which one is followed depends on the whole path there
                chain = self.chain(tid)
                has_lock = any(edge.wait.kind.traits.is_lock for edge in chain.edges)
                return ChainTail(chain.end, chain.reason, len(chain.edges), has_lock)
            else:
                path[at] = edges[0]
                at = edges[0].held_by
        for edge in reversed(path.values()):
            rest = self._tails[edge.held_by]
            has_lock = rest.has_lock or edge.wait.kind.traits.is_lock
            self._tails[edge.tid] = ChainTail(rest.end, rest.reason, rest.length + 1, has_lock)
        return self._tails[tid]

    def explained_chain(self, tid: int, named: Iterable[int] = ()) -> Chain:
        """chain() also through timed waits and possible wakers: an explanation, no proof. A running candidate comes
        first, then one that is no idle worker; ``named`` tids, which are in the sentence already, are skipped."""

        def unlikeliness(candidate: int) -> tuple[bool, bool]:
            thread = self.threads[candidate]
            return thread.wait is not None, thread.state is RunState.IDLE

        edges: list[WaitEdge] = []
        visited = {tid, *named}
        while True:
            wait = self.threads[tid].wait if tid in self.threads else None
            if not wait or wait.being_released:
                return Chain(tuple(edges), tid, ChainEnd.HANDOVER if wait else ChainEnd.RUNNING)
            candidates = wait.owner_tids or wait.detail.expects
            following = [owner for owner in candidates if owner in self.threads and owner not in visited]
            if not following:
                return Chain(tuple(edges), tid, ChainEnd.UNKNOWN)
            owner = min(following, key=unlikeliness)
            edges.append(WaitEdge(tid, owner, wait))
            visited.add(owner)
            tid = owner

    def _end_reason(self, tid: int) -> ChainEnd | None:
        """The reason why a chain ends at thread ``tid``; None if it continues."""
        thread = self.threads.get(tid)
        if not thread:
            return ChainEnd.ABSENT
        wait = thread.wait
        if not wait:
            return ChainEnd.RUNNING
        if wait.is_abandoned:
            return ChainEnd.MISSING
        if wait.gone_owner is not None:
            return ChainEnd.GONE
        if wait.being_released:
            return ChainEnd.HANDOVER
        if wait.ends_by_itself:
            return ChainEnd.TIMED
        return None if self.edges_of(tid) else ChainEnd.UNKNOWN


def _components(successors: Mapping[int, Sequence[WaitEdge]]) -> Iterator[set[int]]:
    """Strongly connected components (thread ids) of two and more threads: Tarjan's algorithm with an explicit stack."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for root in successors:
        if root in index:
            continue
        work: list[tuple[int, int]] = [(root, 0)]
        while work:
            tid, position = work.pop()
            if position == 0:
                index[tid] = low[tid] = len(index)
                path.append(tid)
                on_path.add(tid)
            edges = successors.get(tid, ())
            if position:
                low[tid] = min(low[tid], low[edges[position - 1].held_by])
            for offset in range(position, len(edges)):
                owner = edges[offset].held_by
                if owner not in index:
                    work += [(tid, offset + 1), (owner, 0)]
                    break
                if owner in on_path:
                    low[tid] = min(low[tid], index[owner])
            else:
                if low[tid] == index[tid]:
                    at = path.index(tid) if path[-1] != tid else len(path) - 1
                    component = set(path[at:])
                    del path[at:]
                    on_path -= component
                    if len(component) > 1:
                        yield component


def _shortest_cycle(
    start: int, component: set[int], successors: Mapping[int, Sequence[WaitEdge]]
) -> tuple[WaitEdge, ...] | None:
    """The shortest cycle through thread ``start`` (breadth first), rotated to begin at its lowest tid."""
    incoming_edge: dict[int, WaitEdge] = {}
    queue = deque([start])
    while queue:
        tid = queue.popleft()
        for edge in successors.get(tid, ()):
            if edge.held_by == start and tid != start:
                edges = [edge]
                while edges[-1].tid != start:
                    edges.append(incoming_edge[edges[-1].tid])
                edges.reverse()
                first = edges.index(min(edges, key=lambda edge: edge.tid))
                return tuple(edges[first:] + edges[:first])
            if edge.held_by in component and edge.held_by not in incoming_edge and edge.held_by != start:
                incoming_edge[edge.held_by] = edge
                queue.append(edge.held_by)
    return None


class TakenPool(NamedTuple):
    """A full pool, all of whose threads wait. ``sentence``: for people; ``tids``: its threads; ``waits_for_itself``:
    each of them waits for what only a thread of the pool can do."""

    sentence: str
    tids: tuple[int, ...]
    waits_for_itself: bool


class Observations(NamedTuple):
    """What was read of a stopped process; mappings are by thread id."""

    threads: Sequence[ThreadReport]
    pid: int
    crashes: Mapping[int, Crash] = MappingProxyType({})
    recursions: Mapping[int, Recursion] = MappingProxyType({})
    masters: Mapping[int, int] = MappingProxyType({})
    """Crashed worker of an OpenMP team → the only thread inside an operator that has a team."""
    has_torch: bool = True
    """PyTorch is in the process, and with it a dispatcher to speak of."""
    complete: bool = True
    """No thread is missing because it could not be read."""
    lives: bool = True
    """The process runs on: it is not a core's."""
    main_has_exited: bool = False
    """The kernel says that the main thread is a zombie, while others live (pthread_exit)."""
    stop: ProcessStop | None = None
    """The stop that the whole process was in before the debugger attached."""
    slowness: Slowness | None = None
    """Explanations of its slowness; None if nothing had to be read."""
    taken_pools: Sequence[TakenPool] = ()
    """The pools all of whose threads wait, while jobs wait for one of them."""
    has_run: Callable[[int], bool] = lambda _: False
    """True if the thread with this id is known to have run, or begun, after it was read."""
    moved: Callable[[], Sequence[int]] = tuple
    """The ids of threads that ran while they were examined."""

    @property
    def waits(self) -> list[tuple[ThreadReport, Wait]]:
        return [(thread, thread.wait) for thread in self.threads if thread.wait]

    @property
    def main(self) -> ThreadReport | None:
        """The thread whose tid is the process's, or the first."""
        first = self.threads[0] if self.threads else None
        return next((thread for thread in self.threads if thread.tid == self.pid), first)


MAX_TASK_CYCLES = 8
"""More cycles of one loop are not listed."""


def task_cycles(loop: EventLoop) -> Iterator[list[AsyncTask]]:
    """Cycles of tasks of one event loop that wait for each other. A task with a timeout is in none."""
    tasks = {task.address: task for task in loop.tasks if not task.timed}
    walked: set[int] = set()
    cycles = filter(None, (_cycle_from(start, tasks, walked) for start in tasks))
    yield from islice(cycles, MAX_TASK_CYCLES)


def _cycle_from(start: int, tasks: dict[int, AsyncTask], walked: set[int]) -> list[AsyncTask]:
    """The first cycle on a depth-first walk from ``start``, [] if there is none. ``tasks``: by address; ``walked``,
    which grows: addresses of tasks from which every path has been walked."""
    path: list[int] = []
    on_path: set[int] = set()
    work: list[tuple[int, bool]] = [(start, False)]
    while work:
        address, is_finished = work.pop()
        if is_finished:
            on_path.discard(path.pop())
            walked.add(address)
            continue
        if address in on_path:
            walked.update(path)
            return [tasks[member] for member in path[path.index(address) :]]
        if address in walked or address not in tasks:
            continue
        path.append(address)
        on_path.add(address)
        work.append((address, True))
        work += [(needed, False) for needed in tasks[address].needs]
    return []


def blocked_chains(facts: Observations, graph: WaitGraph) -> Iterator[Chain]:
    """Chains to waits which no thread of the process is known to end, one for each end, the most significant one first:
    from an operator, then from the main thread, then the longest."""
    any_thread_runs = any(thread.state is RunState.RUNNING for thread in facts.threads)
    no_thread_can_wake = facts.complete and no_thread_can_wake_others(facts.threads)

    def is_blocked(thread: ThreadReport, tail: ChainTail) -> bool:
        """True if the chain's last wait has no known owner (or is timed), nothing outside ends it, and the thread is in
        an operator or node, or a lock is in the chain, or no thread can wake it. A sleep of less than 5 s at the end of
        a chain with a lock is a pause between two steps of work."""
        end = graph.threads.get(tail.end)
        if not end or not end.wait or end.state is RunState.IDLE:
            return False
        traits = end.wait.kind.traits
        if tail.reason not in (ChainEnd.UNKNOWN, ChainEnd.TIMED) or traits.is_outside:
            return False
        if tail.reason is ChainEnd.UNKNOWN and traits.needs_thread and any_thread_runs:
            return False
        if thread.dispatch or thread.backward:
            return True
        if tail.reason is ChainEnd.TIMED:
            return tail.has_lock and (end.wait.detail.seconds or 0) >= 5
        # Python runs signal handlers in the main thread, also while it waits for an event; in C, sem_post is the one of
        # these functions that a handler may call (signal-safety(7)).
        by_python = end.wait.detail.set_by_handlers and bool(end.python_frames)
        may_be_handled = end.tid == facts.pid and (traits.handler_may_end_it or by_python)
        return tail.has_lock or (no_thread_can_wake and not may_be_handled)

    starts: dict[int, tuple[tuple[int, ...], int]] = {}  # last thread → (rank, first thread) of the best chain to it
    for thread, _ in facts.waits:
        tail = graph.tail(thread.tid)
        if thread.state is not RunState.IDLE and is_blocked(thread, tail):
            rank = (not thread.dispatch, thread.tid != facts.pid, -tail.length)
            starts[tail.end] = min(starts.get(tail.end, (rank, thread.tid)), (rank, thread.tid), key=itemgetter(0))
    for _, tid in sorted(starts.values(), key=itemgetter(0)):
        yield graph.chain(tid)


def no_thread_can_wake_others(threads: Sequence[ThreadReport]) -> bool:
    """True if every thread waits for another thread of this process: none will ever wake any."""
    return not any(map(may_wake_others, threads))


def may_wake_others(thread: ThreadReport) -> bool:
    """True if the thread will resume without any thread of this process, and may then wake others."""
    wait = thread.wait
    if not wait:
        return True
    if thread.state is RunState.IDLE and not wait.resource.address:
        return True  # it waits for the system (a pipe, a socket), or spins
    return wait.being_released or wait.external or wait.ends_by_itself or not wait.kind.traits.needs_thread


def external_waits(facts: Observations) -> list[tuple[ThreadReport, Wait]]:
    """(thread, wait) for a peer, device, child process or (main thread) input; the most significant first."""
    rows = []
    for thread, wait in facts.waits:
        if thread.state is RunState.IDLE or wait.being_released:
            continue
        if wait.timed and thread.loop and thread.loop.only_sleeps:
            continue  # as a thread in time.sleep()
        is_main, shared = thread.tid == facts.pid, wait.external and not wait.ends_by_itself
        if wait.kind.traits.is_outside or (is_main and (wait.kind is WaitKind.IO or shared)):
            rows.append((wait.kind.priority, not is_main, thread, wait))
    rows.sort(key=itemgetter(0, 1))
    return [(thread, wait) for _, _, thread, wait in rows]


def busy_threads(facts: Observations, graph: WaitGraph) -> Iterator[ThreadReport]:
    """Threads inside the dispatcher that run, then those that wait for something that runs."""
    inside = sorted(facts.threads, key=lambda thread: (thread.tid != facts.pid, thread.tid))
    inside = [thread for thread in inside if thread.dispatch]
    runs = any(thread.state is RunState.RUNNING for thread in facts.threads)
    ends = (ChainEnd.RUNNING, ChainEnd.HANDOVER, *((ChainEnd.UNKNOWN,) if runs else ()))
    yield from (thread for thread in inside if thread.state is RunState.RUNNING)
    waiting = (thread for thread in inside if thread.state is RunState.WAITING)
    yield from (thread for thread in waiting if graph.tail(thread.tid).reason in ends)


def groups_by_line(threads: Sequence[ThreadReport]) -> list[list[ThreadReport]]:
    """Threads that wait in user files, by line and kind of wait; holders, lasting waits and large groups first."""
    groups: dict[object, list[ThreadReport]] = {}
    for thread in threads:
        wait = thread.wait
        if not wait or (wait.kind is WaitKind.IO and wait.detail.peer and wait.detail.peer.own):
            continue  # it waits for an answer of its own process: others are the reason
        at_line = thread.state is RunState.WAITING and bool(thread.user_line) and not wait.being_released
        if thread.waits_in_user_code or (at_line and wait.kind.traits.needs_thread):  # for a connection of a pool, say
            groups.setdefault((thread.user_line, wait.kind), []).append(thread)

    def rank(group: Sequence[ThreadReport]) -> tuple[bool, bool, bool, int]:
        held = [resource for thread in group for resource in thread.holds if resource.kind is not WaitKind.GIL]
        needs_thread = group[0].wait is not None and group[0].wait.kind.traits.needs_thread
        return not held, not group[0].waits_in_user_code, not needs_thread, -len(group)

    return sorted(groups.values(), key=rank)


def bystanders(facts: Observations, involved: Sequence[int]) -> list[list[ThreadReport]]:
    """Up to two groups of threads besides the ``involved`` ones that wait in the program's own files, by line."""
    others = [thread for thread in facts.threads if thread.tid not in involved and thread is not facts.main]
    return groups_by_line(others)[:2]
