"""The wait-for graph: cycles of any length and mix, chains to their end, timed waits and 10,000 threads."""

from __future__ import annotations

import random

from gdbext.diagnosis.verdict.graph import ChainEnd, WaitGraph
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
