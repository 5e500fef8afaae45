"""Cycles among the tasks of an event loop."""

from __future__ import annotations

from gdbext.diagnosis.report.finding import FindingKind
from gdbext.diagnosis.report.thread_report import AsyncTask, EventLoop, TaskState
from gdbext.diagnosis.verdict import judge
from gdbext.diagnosis.verdict.graph import MAX_TASK_CYCLES, Observations, task_cycles
from support.fakes.analysis_facts import thread, wait


def task(address, *needs, state=TaskState.WAITING, **more):
    return AsyncTask(f"task-{address}", address, state, f"waits for {needs}", needs, **more)


def loop(*tasks):
    return EventLoop(0x1000, "_UnixSelectorEventLoop", 1, 0, tasks)


def cycles(*tasks):
    return [sorted(each.address for each in cycle) for cycle in task_cycles(loop(*tasks))]


def test_tasks_that_wait_for_each_other():
    assert cycles(task(1, 2), task(2, 3), task(3, 2), task(4)) == [[2, 3]]
    assert cycles(task(1, 1)) == [[1]]
    assert cycles(task(1, 2), task(2, 1), task(3, 4), task(4, 3)) == [[1, 2], [3, 4]]


def test_no_cycle():
    assert cycles() == []
    assert cycles(task(1, 2, 3), task(2, 3), task(3)) == []
    assert cycles(task(1, 2), task(2, 1, timed=True)) == []
    assert cycles(task(1, 99)) == []


def test_many_cycles_and_long_ones():
    assert len(cycles(*(task(at, at) for at in range(1, 100)))) == MAX_TASK_CYCLES
    assert len(cycles(*(task(at, at % 5000 + 1) for at in range(1, 5001)))[0]) == 5000


def test_a_cycle_is_a_deadlock_of_the_thread_that_runs_the_loop():
    runs = thread(1, wait("io", name="epoll_wait on fd 3"))._replace(loop=loop(task(1, 2), task(2, 1, inferred=True)))
    found = judge(Observations([runs], 1)).verdict.finding
    assert (found.kind, found.threads, found.cycle) == (FindingKind.DEADLOCK, (1,), ())
    assert "task-1 waits for (2,); task-2 waits for (1,)" in found.summary
    assert "inferred" in found.summary


def test_what_a_loop_waits_for_stands_behind_the_wait_of_its_thread():
    runs = thread(1, wait("io", name="epoll_wait on fd 3"))._replace(loop=loop(task(1), task(2, state=TaskState.READY)))
    found = judge(Observations([runs], 1)).verdict.finding
    assert found.kind is FindingKind.WAITING_EXTERNAL
    assert found.summary.endswith("its event loop has 2 tasks, 1 of them ready: task-1 waits for ().")


def test_a_loop_that_only_other_threads_could_wake_is_stuck_also_where_it_always_sleeps_for_a_time():
    stuck = loop(task(1, only_from_here=True))._replace(watches_itself=True)
    timed = wait("io", name="epoll_wait on fd 3")._replace(timed=True)
    trios = judge(Observations([thread(1, timed)._replace(loop=stuck._replace(always_timed=True))], 1)).verdict.finding
    assert trios.kind is FindingKind.BLOCKED
    asyncios = judge(Observations([thread(1, timed)._replace(loop=stuck)], 1)).verdict.finding
    assert asyncios.kind is FindingKind.WAITING_EXTERNAL


def test_a_loop_of_which_nothing_outside_is_awaited_does_not_wait_for_input():
    polls = thread(1, wait("io", name="epoll_wait on fd 3"))._replace(
        loop=loop(task(1, only_from_here=True), task(2, sleeps=True, timed=True))
    )
    assert judge(Observations([polls], 1)).verdict.finding.heading == "the tasks of an event loop wait"
    reads = polls._replace(loop=loop(task(1, only_from_here=True), task(2)))
    assert judge(Observations([reads], 1)).verdict.finding.heading == "waits for input or output"


def test_a_loop_that_sleeps_with_callbacks_due_was_not_woken():
    """A loop calls what is due before it sleeps: what is due now was put there by somebody else."""
    sleeps, late = wait("io", name="epoll_wait on fd 3"), loop(task(1))._replace(ready=2)
    found = judge(Observations([thread(1, sleeps)._replace(loop=late)], 1)).verdict
    assert found.kind is FindingKind.BLOCKED
    assert "sleeps, although 2 callbacks are due" in found.summary
    ran = judge(Observations([thread(1, sleeps)._replace(loop=late)], 1, has_run=lambda _: True)).verdict
    assert ran.kind is not FindingKind.BLOCKED, "it was woken, and had no turn yet"
    timed = judge(Observations([thread(1, sleeps._replace(timed=True))._replace(loop=late)], 1)).verdict
    assert timed.kind is not FindingKind.BLOCKED


def test_a_task_that_runs_keeps_the_others_from_running():
    busy = loop(task(1, state=TaskState.RUNNING), task(2), task(3))
    found = judge(Observations([thread(1, python_name="MainThread")._replace(loop=busy)], 1, has_torch=False)).verdict
    assert found.summary.endswith("the task task-1 runs in its event loop; until it awaits, 2 other tasks cannot run.")
    alone = judge(Observations([thread(1)._replace(loop=loop(task(1, state=TaskState.RUNNING)))], 1)).verdict
    assert "event loop" not in alone.summary
