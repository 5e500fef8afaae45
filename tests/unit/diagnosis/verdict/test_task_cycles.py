"""Cycles among the tasks of an event loop."""

from __future__ import annotations

import pytest

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
