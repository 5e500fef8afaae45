"""The wait-for graph and that of tasks: cycles of any length and mix, chains to their end, timed waits."""

from __future__ import annotations

import random

import pytest

from gdbext.diagnosis.kinds.blocked import BLOCKED
from gdbext.diagnosis.report.thread_report import AsyncTask, EventLoop, TaskState
from gdbext.diagnosis.report.wait_detail import AbsentWorkers
from gdbext.diagnosis.verdict.graph import MAX_TASK_CYCLES, ChainEnd, Observations, WaitGraph, task_cycles
from gdbext.diagnosis.verdict.judgement import judge
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from support.fakes.analysis_facts import thread, wait
from support.programs.work import lines_run


def ring(size, kind="mutex", first=1):
    return [thread(first + i, wait(kind, first + (i + 1) % size, address=0x1000 + i)) for i in range(size)]


def cycle_tids(graph, **more):
    return [[edge.tid for edge in cycle] for cycle in graph.cycles(**more)]


INTO = [thread(100 + i, wait("mutex", 1 + i % 50)) for i in range(200)]
WANTS_FIRST, LEADS_ON = thread(2, wait("mutex", 1)), thread(1, wait("mutex", 2))


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ([thread(7, wait("gil", 9)), thread(9, wait("mutex", 7))], [[7, 9]]),
        ([*ring(50), *INTO], [list(range(1, 51))]),
        ([*ring(3, first=10), *ring(2, first=20)], [[20, 21], [10, 11, 12]]),  # the shortest first
        ([thread(1, wait("rwlock", 2, others=(3,))), thread(2), thread(3, wait("mutex", 1))], [[1, 3]]),
        # A timed wait ends by itself, but the GIL is waited for again.
        ([thread(1, wait("gil", 2, timed=True)), WANTS_FIRST], [[1, 2]]),
    ],
)
def test_cycles(threads, expected):
    assert cycle_tids(WaitGraph(threads)) == expected
    (edge, *_), *_ = WaitGraph(threads).cycles()
    assert edge.wait == next(t for t in threads if t.tid == edge.tid).wait
    assert edge.held_by in edge.wait.owner_tids


MISSING = MissingWorkers(pools.OPENMP, forked=True)
AT_BARRIER = thread(1, wait("barrier", 2, others=(3,)))


@pytest.mark.parametrize(
    ("threads", "tid", "end", "reason", "tids"),
    [
        ([LEADS_ON, thread(2, wait("gil", 3)), thread(3)], 1, 3, ChainEnd.RUNNING, [1, 2]),
        ([AT_BARRIER, thread(2), thread(3, wait("futex"))], 1, 3, ChainEnd.UNKNOWN, [1]),
        ([thread(1, wait("mutex", 2, timed=True)), WANTS_FIRST], 2, 1, ChainEnd.TIMED, [2]),
        ([thread(1, wait("mutex", 2, being_released=True)), WANTS_FIRST], 2, 1, ChainEnd.HANDOVER, [2]),
        ([thread(1, wait("mutex", 99, gone=True))], 1, 1, ChainEnd.GONE, []),
        ([thread(1, wait("barrier", detail=AbsentWorkers(MISSING)))], 1, 1, ChainEnd.MISSING, []),
        ([thread(1, wait("futex"))], 1, 1, ChainEnd.UNKNOWN, []),
        ([thread(1, wait("mutex", 1234))], 1, 1234, ChainEnd.ABSENT, [1]),
        ([thread(1, wait("mutex", 1))], 1, 1, ChainEnd.CYCLE, [1]),
    ],
)
def test_ends_of_chains(threads, tid, end, reason, tids):
    graph = WaitGraph(threads)
    chain = graph.chain(tid)
    assert (chain.end, chain.reason, [edge.tid for edge in chain.edges]) == (end, reason, tids)
    assert graph.cycles() == []
    assert len(graph.cycles(with_timed=True)) == (reason is ChainEnd.TIMED)
    assert [edge.tid for edge in graph.self_loops()] == [1] * (reason is ChainEnd.CYCLE)


def test_thousands_of_threads_in_linear_time():
    line = [*(thread(i, wait("mutex", i + 1)) for i in range(1, 2_000)), *ring(3, first=20_000)]
    chords = [thread(i, wait("mutex", i % 2_000 + 1, others=[i // 2 + 1])) for i in range(1, 2_001)]
    chains = [*ring(2_000), *(thread(i, wait("futex", i + 1)) for i in range(20_000, 22_000))]

    def work():
        for threads in (ring(2_000), chords):
            assert len(WaitGraph(threads).cycles()) >= 1
        graph = WaitGraph(line)
        assert cycle_tids(graph) == [[20_000, 20_001, 20_002]]
        assert graph.chain(1).end == 2_000
        graph = WaitGraph(chains)
        assert {graph.tail(tid).reason for tid in range(1, 2_001)} == {ChainEnd.CYCLE}
        assert {graph.tail(tid).end for tid in range(20_000, 22_000)} == {22_000}

    assert lines_run(work) < 200 * (len(line) + len(chords) + len(chains))


def test_a_tail_is_its_chain_without_edges():
    numbers = random.Random(23)

    def any_wait(size):
        kind, owner = numbers.choice(("mutex", "futex", "gil", "join")), numbers.choice((*range(size + 1), None))
        others = [numbers.randrange(size)] if numbers.random() < 0.1 else ()
        return wait(kind, owner, timed=numbers.random() < 0.1, others=others)

    for size in (1, 2, 3, 5, 9, 30) * 50:
        graph = WaitGraph(thread(tid, any_wait(size)) for tid in range(size))
        for tid in numbers.sample(range(size), size):
            chain, tail = graph.chain(tid), graph.tail(tid)
            assert tail.reason is chain.reason
            if chain.reason is not ChainEnd.CYCLE:
                has_lock = any(edge.wait.kind.traits.is_lock for edge in chain.edges)
                assert (tail.end, tail.length, tail.has_lock) == (chain.end, len(chain.edges), has_lock)


def task(address, *needs, state=TaskState.WAITING, **more):
    return AsyncTask(f"task-{address}", address, state, f"waits for {needs}", needs, **more)


def loop(*tasks):
    return EventLoop(tasks, 0x1000, "_UnixSelectorEventLoop", 1, 0)


def cycles(*tasks):
    return [sorted(each.address for each in cycle) for cycle in task_cycles(loop(*tasks))]


def test_tasks_that_wait_for_each_other():
    for tasks, expected in (
        ([task(1, 2), task(2, 3), task(3, 2), task(4)], [[2, 3]]),
        ([task(1, 1)], [[1]]),
        ([task(1, 2), task(2, 1), task(3, 4), task(4, 3)], [[1, 2], [3, 4]]),
        *((tasks, []) for tasks in ([], [task(1, 2, 3), task(2, 3), task(3)], [task(1, 99)])),
        ([task(1, 2), task(2, 1, timed=True)], []),
    ):
        assert cycles(*tasks) == expected


def test_many_cycles_are_bounded_and_long_ones_found():
    everyone = range(1, 70)
    threads = [thread(i, wait("rwlock", i % 69 + 1, others=[j for j in everyone if j != i])) for i in everyone]
    assert 1 <= len(WaitGraph(threads).cycles()) <= 64
    assert len(cycles(*(task(at, at) for at in range(1, 100)))) == MAX_TASK_CYCLES
    assert len(cycles(*(task(at, at % 5000 + 1) for at in range(1, 5001)))[0]) == 5000


SLEEPS = wait("io", name="epoll_wait on fd 3")
STUCK = loop(task(1, only_from_here=True))._replace(watches_itself=True)


def finding(event_loop, waits=SLEEPS, **more):
    return judge(Observations([thread(1, waits, loop=event_loop)], 1, **more)).verdict.finding


CYCLE = loop(task(1, 2), task(2, 1, inferred=True))
TIMED = SLEEPS._replace(timed=True)
POLLS = loop(task(1, only_from_here=True), task(2, sleeps=True, timed=True))
LATE = loop(task(1))._replace(ready=2)
RUNS = loop(task(1, state=TaskState.RUNNING), task(2), task(3))


@pytest.mark.parametrize(
    ("event_loop", "waits", "kind", "part"),
    [
        (CYCLE, SLEEPS, "deadlock", "task-1 waits for (2,); task-2 waits for (1,)"),
        (CYCLE, SLEEPS, "deadlock", "inferred"),
        (loop(task(1), task(2, state=TaskState.READY)), SLEEPS, "waiting-external", "2 tasks, 1 of them ready: task-1"),
        # A loop that only other threads could wake is stuck also where it always sleeps for a time.
        (STUCK._replace(always_timed=True), TIMED, "blocked", ""),
        (STUCK, TIMED, "waiting-external", ""),
        # A loop calls what is due before it sleeps: what is due now was put there by somebody else.
        (LATE, SLEEPS, "blocked", "sleeps, although 2 callbacks are due"),
        (LATE, TIMED, "waiting-external", ""),
        (RUNS, None, "busy", "the task task-1 runs in its event loop; until it awaits, 2 other tasks cannot run."),
    ],
)
def test_event_loops(event_loop, waits, kind, part):
    found = finding(event_loop, waits, has_torch=event_loop is not RUNS)
    assert (found.kind.value, found.threads, found.cycle) == (kind, (1,), ())
    assert part in found.summary


def test_what_an_event_loop_does_not_wait_for():
    assert finding(LATE, has_run=lambda _: True).kind is not BLOCKED, "it was woken, and had no turn yet"
    assert finding(POLLS).heading == "the tasks of an event loop wait"
    assert finding(loop(task(1, only_from_here=True), task(2))).heading == "waits for input or output"
    assert "event loop" not in finding(loop(task(1, state=TaskState.RUNNING)), None).summary
