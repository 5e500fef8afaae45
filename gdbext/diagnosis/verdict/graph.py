"""The observations that a verdict is made from, and their wait-for graph: which thread waits for which, cycles, ends of
chains; cycles among the tasks of an event loop.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import WaitEdge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gdbext.diagnosis.report.finding import ProcessStop
    from gdbext.diagnosis.report.thread_report import AsyncTask, EventLoop
    from gdbext.diagnosis.report.wait import Wait
    from gdbext.diagnosis.verdict.crash import Crash
    from gdbext.diagnosis.verdict.recursion import Recursion
    from gdbext.diagnosis.verdict.slowness import Slowness

MAX_CYCLES = 64
"""More cycles than this are not listed: a reader needs one."""
_MOST_STEPS = 300_000
"""Steps to look for shorter cycles in knots of waits; behind them each knot has the one through its lowest tid."""


class ChainEnd(Enum):
    """The end of a chain of waits."""

    RUNNING = "the last thread runs"
    GONE = "the recorded owner is not a thread of this process"
    MISSING = "the workers that would end the wait do not exist"
    HANDOVER = "the last thread is about to be woken"
    TIMED = "the last wait ends by itself"
    UNKNOWN = "the last thread waits, and nobody is known to hold what it waits for"
    CYCLE = "the chain leads back into itself"
    ABSENT = "the owner could not be read"


class Chain(NamedTuple):
    """A chain of waits from one thread to its end; ``end`` is the last thread reached."""

    edges: tuple[WaitEdge, ...]
    end: int
    reason: ChainEnd

    @property
    def tids(self) -> tuple[int, ...]:
        """All threads of the chain, each once, the first one first."""
        return tuple(dict.fromkeys([edge.tid for edge in self.edges] + [self.end]))


class ChainTail(NamedTuple):
    """A chain of waits without its edges: their number, whether one is for a lock, and where they end; in a circle any
    thread of it is the end."""

    end: int
    reason: ChainEnd
    length: int
    has_lock: bool

    def behind(self, edge: WaitEdge) -> ChainTail:
        """The chain that begins with one more edge."""
        has_lock = self.has_lock or edge.wait.kind.traits.is_lock
        return ChainTail(self.end, self.reason, self.length + 1, has_lock)


class WaitGraph:
    """Edges from thread to thread. Linear in threads and edges; nothing recursive."""

    def __init__(self, threads: Iterable[ThreadReport]) -> None:
        self.threads: dict[int, ThreadReport] = {thread.tid: thread for thread in threads}
        self._edges: dict[int, tuple[WaitEdge, ...]] = {}
        self._tails: dict[int, ChainTail] = {}
        self._waiters: dict[int, list[int]] = {}
        for thread in self.threads.values():
            self._edges[thread.tid] = tuple(_edges(thread))
            for edge in self._edges[thread.tid]:
                if edge.held_by != edge.tid:
                    self._waiters.setdefault(edge.held_by, []).append(edge.tid)

    def edges_of(self, tid: int) -> tuple[WaitEdge, ...]:
        """The waits of this thread, one edge for each owner that is alive."""
        return self._edges.get(tid, ())

    def self_loops(self) -> list[WaitEdge]:
        """Threads that wait for what they hold themselves."""
        return [
            edge
            for edges in self._edges.values()
            for edge in edges
            if edge.held_by == edge.tid and not edge.wait.ends_by_itself
        ]

    def cycles(self, with_timed: bool = False) -> list[tuple[WaitEdge, ...]]:
        """Cycles of two and more threads, shortest first within each knot, each starting at its lowest tid.

        Timed waits end by themselves and are left out unless ``with_timed``. Cycles over the same set of
        threads are given once; at most MAX_CYCLES are given.
        """
        successors = {
            tid: [edge for edge in edges if with_timed or not edge.wait.ends_by_itself]
            for tid, edges in self._edges.items()
        }
        found: dict[frozenset[int], tuple[WaitEdge, ...]] = {}
        steps = 0
        for component in _components(successors):
            inside = sum(edge.held_by in component for tid in component for edge in successors[tid])
            is_ring = inside == len(component)
            for tid in sorted(component) if not is_ring and steps < _MOST_STEPS else [min(component)]:
                steps += inside
                if steps > _MOST_STEPS and steps > inside and tid != min(component):
                    break
                cycle = _shortest_cycle(tid, component, successors)
                if cycle:
                    found.setdefault(frozenset(edge.tid for edge in cycle), cycle)
                if len(found) >= MAX_CYCLES:
                    return list(found.values())
        return sorted(found.values(), key=len)

    def chain(self, tid: int) -> Chain:
        """The waits from ``tid`` to where they end; of several owners one that waits itself is followed."""
        edges: list[WaitEdge] = []
        seen = {tid}
        while True:
            reason = self._reason(tid)
            if reason:
                return Chain(tuple(edges), tid, reason)
            step = self._next(tid, seen)
            edges.append(step)
            if step.held_by in seen:
                return Chain(tuple(edges), step.held_by, ChainEnd.CYCLE)
            tid = step.held_by
            seen.add(tid)

    def tail(self, tid: int) -> ChainTail:
        """The chain from ``tid`` without its edges: of all threads together in linear time, where each waits for one
        other."""
        way: dict[int, WaitEdge] = {}
        at = tid
        while at not in self._tails:
            reason, edges = self._reason(at), self.edges_of(at)
            if reason or at in way:
                self._tails[at] = ChainTail(at, reason or ChainEnd.CYCLE, 0, False)
            elif len(edges) > 1:  # which one is followed depends on the whole way there
                chain = self.chain(tid)
                has_lock = any(edge.wait.kind.traits.is_lock for edge in chain.edges)
                return ChainTail(chain.end, chain.reason, len(chain.edges), has_lock)
            else:
                way[at] = edges[0]
                at = edges[0].held_by
        for edge in reversed(way.values()):
            self._tails[edge.tid] = self._tails[edge.held_by].behind(edge)
        return self._tails[tid]

    def wait_chain(self, tid: int, told: Iterable[int] = ()) -> Chain:
        """The chain as ``chain`` has it, but through timed waits and past what only might end a wait, too: it explains,
        and proves nothing. Of several threads that may act one that runs is followed, then one that is no idle
        worker; none of those that were ``told``."""
        edges: list[WaitEdge] = []
        seen = {tid, *told}
        while True:
            wait = self.threads[tid].wait if tid in self.threads else None
            if not wait or wait.being_released:
                return Chain(tuple(edges), tid, ChainEnd.HANDOVER if wait else ChainEnd.RUNNING)
            candidates = wait.owner_tids or wait.detail.expects
            following = [each for each in candidates if each in self.threads and each not in seen]
            if not following:
                return Chain(tuple(edges), tid, ChainEnd.UNKNOWN)
            owner = min(following, key=self._unlikely)
            edges.append(WaitEdge(tid, owner, wait))
            seen.add(owner)
            tid = owner

    def _unlikely(self, tid: int) -> tuple[bool, bool]:
        return self.threads[tid].wait is not None, self.threads[tid].state is RunState.IDLE

    def waiters(self) -> Mapping[int, Sequence[int]]:
        """The threads that wait directly for something that a thread holds, for each thread."""
        return self._waiters

    def _reason(self, tid: int) -> ChainEnd | None:
        thread = self.threads.get(tid)
        if not thread:
            return ChainEnd.ABSENT
        wait = thread.wait
        if not wait:
            return ChainEnd.RUNNING
        for reason, holds in (
            (ChainEnd.MISSING, wait.is_abandoned),
            (ChainEnd.GONE, wait.gone_owner is not None),
            (ChainEnd.HANDOVER, wait.being_released),
            (ChainEnd.TIMED, wait.ends_by_itself),
            (ChainEnd.UNKNOWN, not self.edges_of(tid)),
        ):
            if holds:
                return reason
        return None

    def _next(self, tid: int, seen: set[int]) -> WaitEdge:
        edges = self.edges_of(tid)
        for edge in edges:
            if edge.held_by in seen:
                return edge
        for edge in edges:
            owner = self.threads.get(edge.held_by)
            if owner and owner.wait and not owner.wait.being_released:
                return edge
        return edges[0]


def _edges(thread: ThreadReport) -> Iterator[WaitEdge]:
    if not thread.wait or thread.wait.being_released:
        return
    for tid in thread.wait.owner_tids:
        yield WaitEdge(thread.tid, tid, thread.wait)


def _components(successors: Mapping[int, Sequence[WaitEdge]]) -> Iterator[set[int]]:
    """Strongly connected components of two and more threads (Tarjan, with a stack of our own)."""
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
    """The shortest cycle through ``start`` inside its component (breadth first), turned to its lowest tid."""
    came_by: dict[int, WaitEdge] = {}
    queue = deque([start])
    while queue:
        tid = queue.popleft()
        for edge in successors.get(tid, ()):
            if edge.held_by == start and tid != start:
                edges = [edge]
                while edges[-1].tid != start:
                    edges.append(came_by[edges[-1].tid])
                edges.reverse()
                first = edges.index(min(edges, key=lambda each: each.tid))
                return tuple(edges[first:] + edges[:first])
            if edge.held_by in component and edge.held_by not in came_by and edge.held_by != start:
                came_by[edge.held_by] = edge
                queue.append(edge.held_by)
    return None


class Observations(NamedTuple):
    """The knowledge of a process that stands still; mappings are by thread id."""

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
    stop: ProcessStop | None = None
    """The stop that the whole process was in before we came."""

    slowness: Slowness | None = None
    """Explanations of its slowness; None where nothing had to be read."""

    has_run: Callable[[int], bool] = lambda _: False
    """True if a thread is known to have run, or begun, after it was seen."""
    moved: Callable[[], Sequence[int]] = tuple
    """The threads that ran on while they were looked at, as the report names them."""

    @property
    def waits(self) -> list[tuple[ThreadReport, Wait]]:
        """The threads that wait, with their waits."""
        return [(thread, thread.wait) for thread in self.threads if thread.wait]

    @property
    def main(self) -> ThreadReport | None:
        """The thread whose tid is the process's, or the first."""
        first = self.threads[0] if self.threads else None
        return next((thread for thread in self.threads if thread.tid == self.pid), first)


MAX_TASK_CYCLES = 8
"""More cycles of one loop are not listed."""


def task_cycles(loop: EventLoop) -> Iterator[list[AsyncTask]]:
    """The cycles, each once. A task that gives up after some time ends a cycle by itself, and is in none."""
    known = {task.address: task for task in loop.tasks if not task.timed}
    done: set[int] = set()
    found = 0
    for start in known:
        cycle = _cycle_from(start, known, done)
        if cycle:
            yield cycle
            found += 1
        if found >= MAX_TASK_CYCLES:
            return


def _cycle_from(start: int, known: dict[int, AsyncTask], done: set[int]) -> list[AsyncTask]:
    """The first cycle that a walk from ``start`` finds; ``done`` are tasks from which all was walked already."""
    path: list[int] = []
    on_path: set[int] = set()
    work: list[tuple[int, bool]] = [(start, False)]
    while work:
        address, left = work.pop()
        if left:
            on_path.discard(path.pop())
            done.add(address)
            continue
        if address in on_path:
            done.update(path)
            return [known[each] for each in path[path.index(address) :]]
        if address in done or address not in known:
            continue
        path.append(address)
        on_path.add(address)
        work.append((address, True))
        work += [(each, False) for each in known[address].needs]
    return []
