"""The wait-for graph and that of tasks: cycles of any length and mix, chains to their end, timed waits."""

from __future__ import annotations

import random

import pytest

from gdbext.diagnosis.report.finding import FindingKind
from gdbext.diagnosis.report.thread_report import AsyncTask, EventLoop, TaskState
from gdbext.diagnosis.verdict import judge
from gdbext.diagnosis.verdict.graph import MAX_TASK_CYCLES, ChainEnd, Observations, WaitGraph, task_cycles
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from support.fakes.analysis_facts import thread, wait
from support.programs.work import lines_run


def ring(size, kind="mutex", first=1):
    return [thread(first + i, wait(kind, first + (i + 1) % size, address=0x1000 + i)) for i in range(size)]


def cycle_tids(graph):
    return [[edge.tid for edge in cycle] for cycle in graph.cycles()]


def test_two_threads():
    graph = WaitGraph([thread(7, wait("gil", 9)), thread(9, wait("mutex", 7))])
    (cycle,) = graph.cycles()
    assert [(e.tid, e.wait.kind.value, e.owner) for e in cycle] == [(7, "gil", 9), (9, "mutex", 7)]


def test_a_long_cycle_with_threads_that_lead_into_it():
    threads = [*ring(50), *(thread(100 + i, wait("mutex", 1 + i % 50)) for i in range(200))]
    assert cycle_tids(WaitGraph(threads)) == [list(range(1, 51))]


def test_separate_cycles_are_all_found_shortest_first():
    assert cycle_tids(WaitGraph([*ring(3, first=10), *ring(2, first=20)])) == [[20, 21], [10, 11, 12]]


def test_no_cycle_where_the_chain_ends():
    graph = WaitGraph([thread(1, wait("mutex", 2)), thread(2, wait("gil", 3)), thread(3)])
    assert graph.cycles() == []
    chain = graph.chain(1)
    assert (chain.end, chain.reason, [e.tid for e in chain.edges]) == (3, ChainEnd.RUNNING, [1, 2])


def test_one_of_several_owners_closes_the_cycle_or_is_stuck():
    graph = WaitGraph([thread(1, wait("rwlock", 2, others=(3,))), thread(2), thread(3, wait("mutex", 1))])
    assert cycle_tids(graph) == [[1, 3]]
    chain = WaitGraph([thread(1, wait("barrier", 2, others=(3,))), thread(2), thread(3, wait("condvar"))]).chain(1)
    assert (chain.end, chain.reason) == (3, ChainEnd.UNKNOWN)


def test_timed_waits_end_by_themselves_but_the_gil_is_waited_for_again():
    lock = [thread(1, wait("mutex", 2, timed=True)), thread(2, wait("mutex", 1))]
    assert WaitGraph(lock).cycles() == []
    assert len(WaitGraph(lock).cycles(with_timed=True)) == 1
    assert WaitGraph(lock).chain(2).reason is ChainEnd.TIMED
    gil = [thread(1, wait("gil", 2, timed=True)), thread(2, wait("mutex", 1))]
    assert cycle_tids(WaitGraph(gil)) == [[1, 2]]


def test_a_lock_that_is_being_handed_on_holds_nobody_up():
    graph = WaitGraph([thread(1, wait("mutex", 2, being_released=True)), thread(2, wait("mutex", 1))])
    assert graph.cycles() == []
    assert graph.chain(2).reason is ChainEnd.HANDOVER


def test_ends():
    missing = MissingWorkers(pools.OPENMP, forked=True)
    threads = [
        thread(1, wait("mutex", 99, gone=True)),
        thread(2, wait("barrier", missing_workers=missing)),
        thread(3, wait("futex")),
        thread(4, wait("mutex", 1234)),
        thread(5, wait("mutex", 5)),
    ]
    graph = WaitGraph(threads)
    ends = [ChainEnd.GONE, ChainEnd.MISSING, ChainEnd.UNKNOWN, ChainEnd.ABSENT, ChainEnd.CYCLE]
    assert [graph.chain(tid).reason for tid in range(1, 6)] == ends
    assert [edge.tid for edge in graph.self_loops()] == [5]
    assert graph.cycles() == []


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
    for size in (1, 2, 3, 5, 9, 30) * 50:
        waits = [
            wait(
                numbers.choice(("mutex", "futex", "gil", "join")),
                numbers.choice((*range(size + 1), None)),
                timed=numbers.random() < 0.1,
                others=[numbers.randrange(size)] if numbers.random() < 0.1 else (),
            )
            for _ in range(size)
        ]
        graph = WaitGraph(thread(tid, each) for tid, each in enumerate(waits))
        for tid in numbers.sample(range(size), size):
            chain, tail = graph.chain(tid), graph.tail(tid)
            assert tail.reason is chain.reason
            if chain.reason is not ChainEnd.CYCLE:
                has_lock = any(edge.wait.kind.traits.is_lock for edge in chain.edges)
                assert (tail.end, tail.length, tail.has_lock) == (chain.end, len(chain.edges), has_lock)


def test_a_dense_knot_is_bounded():
    everyone = range(1, 70)
    threads = [thread(i, wait("rwlock", i % 69 + 1, others=[j for j in everyone if j != i])) for i in everyone]
    assert 1 <= len(WaitGraph(threads).cycles()) <= 64


def task(address, *needs, state=TaskState.WAITING, **more):
    return AsyncTask(f"task-{address}", address, state, f"waits for {needs}", needs, **more)


def loop(*tasks):
    return EventLoop(0x1000, "_UnixSelectorEventLoop", 1, 0, tasks)


def cycles(*tasks):
    return [sorted(each.address for each in cycle) for cycle in task_cycles(loop(*tasks))]


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([task(1, 2), task(2, 3), task(3, 2), task(4)], [[2, 3]]),
        ([task(1, 1)], [[1]]),
        ([task(1, 2), task(2, 1), task(3, 4), task(4, 3)], [[1, 2], [3, 4]]),
        ([], []),
        ([task(1, 2, 3), task(2, 3), task(3)], []),
        ([task(1, 2), task(2, 1, timed=True)], []),
        ([task(1, 99)], []),
    ],
)
def test_tasks_that_wait_for_each_other(tasks, expected):
    assert cycles(*tasks) == expected


def test_many_cycles_and_long_ones():
    assert len(cycles(*(task(at, at) for at in range(1, 100)))) == MAX_TASK_CYCLES
    assert len(cycles(*(task(at, at % 5000 + 1) for at in range(1, 5001)))[0]) == 5000


SLEEPS = wait("io", name="epoll_wait on fd 3")
STUCK = loop(task(1, only_from_here=True))._replace(watches_itself=True)


def finding(event_loop, waits=SLEEPS, **more):
    return judge(Observations([thread(1, waits, loop=event_loop)], 1, **more)).verdict.finding


def test_a_cycle_is_a_deadlock_of_the_thread_that_runs_the_loop():
    found = finding(loop(task(1, 2), task(2, 1, inferred=True)))
    assert (found.kind, found.threads, found.cycle) == (FindingKind.DEADLOCK, (1,), ())
    assert "task-1 waits for (2,); task-2 waits for (1,)" in found.summary
    assert "inferred" in found.summary


def test_what_a_loop_waits_for_stands_behind_the_wait_of_its_thread():
    found = finding(loop(task(1), task(2, state=TaskState.READY)))
    assert found.kind is FindingKind.WAITING_EXTERNAL
    assert found.summary.endswith("its event loop has 2 tasks, 1 of them ready: task-1 waits for ().")


def test_a_loop_that_only_other_threads_could_wake_is_stuck_also_where_it_always_sleeps_for_a_time():
    timed = SLEEPS._replace(timed=True)
    assert finding(STUCK._replace(always_timed=True), timed).kind is FindingKind.BLOCKED
    assert finding(STUCK, timed).kind is FindingKind.WAITING_EXTERNAL


def test_a_loop_of_which_nothing_outside_is_awaited_does_not_wait_for_input():
    polls = loop(task(1, only_from_here=True), task(2, sleeps=True, timed=True))
    assert finding(polls).heading == "the tasks of an event loop wait"
    assert finding(loop(task(1, only_from_here=True), task(2))).heading == "waits for input or output"


def test_a_loop_that_sleeps_with_callbacks_due_was_not_woken():
    """A loop calls what is due before it sleeps: what is due now was put there by somebody else."""
    late = loop(task(1))._replace(ready=2)
    found = finding(late)
    assert found.kind is FindingKind.BLOCKED
    assert "sleeps, although 2 callbacks are due" in found.summary
    assert finding(late, has_run=lambda _: True).kind is not FindingKind.BLOCKED, "it was woken, and had no turn yet"
    assert finding(late, SLEEPS._replace(timed=True)).kind is not FindingKind.BLOCKED


def test_a_task_that_runs_keeps_the_others_from_running():
    busy = finding(loop(task(1, state=TaskState.RUNNING), task(2), task(3)), None, has_torch=False)
    assert busy.summary.endswith("the task task-1 runs in its event loop; until it awaits, 2 other tasks cannot run.")
    assert "event loop" not in finding(loop(task(1, state=TaskState.RUNNING)), None).summary
