"""From threads to the verdict: every kind of the contract, its precedence, and what must not be said."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.report.finding import FindingKind
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, RunState
from gdbext.diagnosis.report.wait import OwnerCertainty
from gdbext.diagnosis.report.wait_kind import Loss, LostThread
from gdbext.diagnosis.verdict import judge, recursion
from gdbext.diagnosis.verdict.crash import Crash, CrashKind
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from gdbext.engine.targets.system.peer import ChildProcess
from gdbext.torch.stack import DispatchStage
from support.fakes.analysis_facts import step, thread, wait

MM = step("aten::mm", 4, 0x10, "Meta")


def judged(*threads, pid=1, **more):
    return judge(Observations(threads, pid, **more))


def verdict(*threads, **more):
    return judged(*threads, **more).verdict.finding


def test_deadlock_names_both_and_their_operators():
    found = verdict(
        thread(1, wait("mutex", 2, address=0xABC, name="config_lock"), [MM], python_name="MainThread"),
        thread(2, wait("gil", 1), [step("aten::add", 1)], python_name="worker"),
    )
    assert (found.kind, found.step.op, found.threads) == (FindingKind.DEADLOCK, "aten::mm", (1, 2))
    assert [(e.tid, e.wait.kind.value, e.owner) for e in found.cycle] == [(1, "mutex", 2), (2, "gil", 1)]
    for text in ("MainThread (tid 1)", "worker (tid 2)", "aten::mm", "aten::add", "the GIL", "0xabc (config_lock)"):
        assert text in found.summary


def test_an_inferred_owner_is_said_to_be_inferred():
    found = verdict(
        thread(1, wait("static-init", 2, certainty=OwnerCertainty.INFERRED, name="at::_ops::mm::call(...)::op")),
        thread(2, wait("gil", 1)),
    )
    assert found.kind is FindingKind.DEADLOCK
    assert "inferred" in found.summary
    assert "which worker holds" not in found.summary


NO_WORKERS = MissingWorkers(pools.OPENMP, forked=True)


@pytest.mark.parametrize(
    ("waits", "kind", "part"),
    [
        (wait("mutex", 1), "self-deadlock", "itself"),
        (wait("mutex", 77, gone=True), "orphaned-lock", "77"),
        (wait("worker-pool", missing_workers=NO_WORKERS), "missing-workers", "no OpenMP worker threads"),
        (wait("condvar"), "blocked", ""),
        (wait("futex"), "blocked", ""),
        (wait("io", name="read of fd 5"), "blocked", ""),
        (wait("sleep", timed=True), "blocked", ""),
        (wait("python-lock"), "blocked", ""),
        (wait("collective"), "waiting-external", ""),
        (wait("device"), "waiting-external", ""),
        (wait("child-process"), "waiting-external", ""),
        (None, "busy", ""),
    ],
)
def test_inside_the_dispatcher(waits, kind, part):
    found = verdict(thread(1, waits, [MM]))
    assert (found.kind.value, found.threads) == (kind, (1,))
    assert (found.step.op, found.step.key, found.step.stage) == ("aten::mm", "Meta", DispatchStage.IN_KERNEL)
    assert [edge.owner for edge in found.cycle] == [1] * (kind == "self-deadlock")
    assert part in found.summary


LAST = thread(3, wait("condvar", address=0xC0))
LATE = wait("barrier", 2, certainty=OwnerCertainty.INFERRED)


@pytest.mark.parametrize(
    ("threads", "kind", "tids"),
    [
        ([thread(1, wait("gil", 2), [MM]), thread(2, wait("mutex", 3)), LAST], "blocked", (1, 2, 3)),
        ([thread(1, LATE, [MM]), thread(2)], "busy", (1,)),
        ([thread(1, wait("gil", 2)), thread(2, wait("io", name="read of fd 3"))], "blocked", (1, 2)),
        ([thread(1, wait("io", name="poll of fd 3"))], "waiting-external", (1,)),
        ([thread(1, wait("sleep", timed=True)), thread(2, wait("io"))], "idle", (1,)),
    ],
)
def test_who_waits_for_whom(threads, kind, tids):
    found = verdict(*threads)
    assert (found.kind.value, found.threads) == (kind, tids)
    assert found.step is threads[0].innermost
    assert ("0xc0" in found.summary) == (LAST in threads)


@pytest.mark.parametrize(
    ("threads", "kind"),
    [
        ([thread(1, wait("mutex", 1))], FindingKind.SELF_DEADLOCK),
        ([thread(1, wait("mutex", 2)), thread(2, wait("gil", 1))], FindingKind.DEADLOCK),
        ([thread(1, wait("mutex", 77, gone=True))], FindingKind.ORPHANED_LOCK),
        ([thread(1, wait("condvar"), [MM])], FindingKind.BLOCKED),
    ],
    ids=lambda value: getattr(value, "value", ""),
)
def test_a_thread_that_ran_on_does_not_wait_for_ever(threads, kind):
    assert verdict(*threads).kind is kind
    asked = []
    still = judged(*threads, has_run=lambda tid: bool(asked.append(tid)))  # type: ignore[func-returns-value]
    assert still.verdict.finding.kind is kind
    assert set(asked) >= {each.tid for each in threads}
    moved = judged(*threads, has_run=lambda tid: tid == asked[-1])
    assert kind not in {moved.verdict.finding.kind, *(finding.kind for finding in moved.findings)}


def test_a_lock_whose_owner_began_meanwhile_is_not_orphaned():
    found = verdict(thread(1, wait("mutex", 77, gone=True), [MM]), has_run=lambda tid: tid == 77)
    assert found.kind is not FindingKind.ORPHANED_LOCK


def test_a_timed_wait_that_begins_again_refutes_nothing():
    threads = (thread(1, wait("mutex", 2), [MM]), thread(2, wait("gil", 1, timed=True), [MM]))
    assert verdict(*threads, has_run=lambda tid: tid == 2).kind is FindingKind.DEADLOCK


def test_contention_is_no_finding():
    assert judged(thread(1, wait("gil", 2), [MM]), thread(2, None), thread(3, wait("mutex", 2))).findings == ()


def test_an_unknown_owner_may_be_the_thread_that_runs():
    found = judged(thread(1, wait("libc-lock"), [MM]), thread(2, None, [step("aten::add")]))
    assert found.verdict.finding.kind is FindingKind.BUSY
    assert [finding.kind for finding in found.findings] == [FindingKind.NOTE]
    assert "cannot be excluded" in found.verdict.finding.summary


def test_idle_pools_and_prompts():
    pool = [thread(i, wait("worker-pool"), state=RunState.IDLE, pool=pools.OPENMP) for i in range(2, 9)]
    found = judged(thread(1, wait("io"), state=RunState.IDLE), *pool)
    assert (found.verdict.finding.kind, found.findings) == (FindingKind.IDLE, ())


def test_no_all_clear_while_a_wait_is_not_understood():
    threads = [thread(1, wait("sleep", timed=True)), thread(2, wait("futex")), thread(3, wait("futex"))]
    found = verdict(*threads[:2])
    assert (found.kind, found.threads) == (FindingKind.IDLE, (1, 2))
    assert "cannot be excluded" in found.summary
    moved = judged(*threads, moved=lambda: (2,))
    assert [finding.threads for finding in moved.findings] == [(3,)]
    assert judged(*threads, moved=lambda: (2, 3)).findings == ()


def test_locks_of_unknown_owner_when_nobody_is_left_to_run():
    found = verdict(thread(1, wait("python-lock")), thread(2, wait("python-lock", address=0x2000)))
    assert found.kind is FindingKind.BLOCKED
    assert "not known" in found.summary


def test_the_main_thread_is_followed_to_another_process():
    loader = thread(2, wait("io", name="read on fd 5"))
    found = verdict(thread(1, wait("queue", name="queue.Queue", timed=True, expects=(2,))), loader)
    assert (found.kind, found.threads) == (FindingKind.WAITING_EXTERNAL, (1, 2))
    ending = "thread 2 also uses: it may be the one to end this wait; thread 2 waits in read on fd 5."
    assert found.summary.endswith(ending)


def test_the_main_thread_is_followed_to_a_thread_that_runs():
    found = judged(thread(1, wait("queue", expects=(2, 3))), thread(2, wait("sleep")), thread(3))
    assert (found.verdict.finding.kind, found.verdict.finding.threads) == (FindingKind.BUSY, (1, 3))
    assert found.verdict.finding.summary.endswith("thread 3 runs; no thread is in the dispatcher.")
    assert not found.findings


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"looks_for": "the file /lock", "looks_outside": True}, "waiting-external"),
        ({"looks_for": "the process 7", "children": (ChildProcess(7),)}, "waiting-external"),
        ({"looks_for": "stopped (which is False)"}, "idle"),
        ({}, "idle"),
    ],
)
def test_a_loop_that_sleeps_waits_for_what_it_looks_at(more, kind):
    found = verdict(thread(1, wait("sleep", timed=True, **more)))
    assert found.kind.value == kind
    assert more.get("looks_for", "sleeps") in found.summary


def test_a_timed_cycle_is_a_note_only():
    found = judged(thread(1, wait("mutex", 2, timed=True)), thread(2, wait("mutex", 1)))
    assert found.verdict.finding.kind is FindingKind.IDLE
    assert "ends by itself" in found.findings[0].summary


def test_runaway_recursion_and_its_stack_overflow():
    deep = thread(1, None, [step("my::op", i, 0x10, event="redispatch") for i in range(100)], signal="SIGSEGV")
    crash = Crash(1, "SIGSEGV", 0x7FF0, CrashKind.STACK_OVERFLOW, "SIGSEGV at 0x7ff0: stack overflow")
    found = verdict(deep, crashes={1: crash}, recursions={1: recursion.detect(deep.dispatch, overflown=True)})
    assert (found.kind, found.step.op) == (FindingKind.RUNAWAY_RECURSION, "my::op")
    assert "K10" in found.summary
    assert "100 times" in found.summary


def test_crash_is_strongest():
    crash = Crash(2, "SIGSEGV", 0, CrashKind.NULL, "SIGSEGV at 0x0: a null pointer")
    crashed = thread(2, None, [step("my::f", 1, 1, "CPU", kernel="my_kernel")])
    found = verdict(thread(1, wait("mutex", 1)), crashed, crashes={2: crash})
    assert (found.kind, found.step.op, found.step.key, found.threads) == (FindingKind.CRASH, "my::f", "CPU", (2,))
    assert "my_kernel" in found.summary


def test_threads_that_wait_alike_are_one_finding():
    threads = [thread(i, wait("condvar", address=0xC0), [MM], stack_key=7) for i in range(1, 200)]
    found = judged(*threads, thread(900, wait("condvar"), [step("aten::add")], stack_key=8))
    assert [len(finding.threads) for finding in found.findings] == [199, 1]
    assert "198 more threads" in found.verdict.finding.summary


def test_threads_that_should_act_and_are_not_there():
    gone = LostThread(("loader",), Loss.ENDED, nobody="no thread is in load (f.py:4), which calls set() of it")
    waits, runs = thread(1, wait("condvar", lost=gone)), thread(2)
    found = verdict(waits)
    assert found.kind is FindingKind.BLOCKED
    told = "the thread loader has ended, and no thread is in load (f.py:4), which calls set() of it."
    assert found.summary.endswith(told)
    assert verdict(waits, runs).kind is not FindingKind.BLOCKED, "it may come to it"
    recorded = thread(1, wait("condvar", lost=gone._replace(is_recorded=True)))
    assert verdict(recorded, runs).kind is FindingKind.BLOCKED
    left = LostThread(("a", "b"), Loss.LEFT_BEHIND, "should run its job", is_recorded=True)
    found = verdict(thread(1, wait("condvar", lost=left)))
    assert found.kind is FindingKind.MISSING_WORKERS
    assert "the threads a, b, which should run its job, were started before the fork" in found.summary


def test_what_others_want_of_the_last_thread_is_said():
    """It waits for what one of them would give: a lock that it keeps meanwhile is the reason that nobody comes."""
    table = {"address": 0x70, "name": "table"}
    found = verdict(
        thread(1, wait("join", 2)),
        thread(2, wait("condvar"), python_name="reader"),
        thread(3, wait("rwlock", 2, **table), python_name="writer"),
    )
    assert found.kind is FindingKind.BLOCKED
    assert found.summary.endswith(
        "; meanwhile writer (tid 3) waits for the read-write lock 0x70 (table), which reader (tid 2) holds."
    )


def test_who_may_end_the_last_wait_is_followed_behind_a_chain():
    found = verdict(
        thread(1, wait("join", 2)),
        thread(2, wait("condvar", expects=(3,)), python_name="consumer"),
        thread(3, wait("python-lock", 2), python_name="feeder"),
    )
    assert (found.kind, found.threads) == (FindingKind.BLOCKED, (1, 2, 3))
    assert "which feeder (tid 3) also uses: it may be the one to end this wait; feeder (tid 3) waits" in found.summary
    lock = wait("python-lock", 3)
    hook = verdict(thread(2, lock, python_name="main"), thread(3, wait("condvar", expects=(2,))), pid=2)
    assert hook.summary.endswith(", which main (tid 2) also uses: they may wait for each other."), hook.summary
    far = verdict(thread(1, wait("join", 2)), thread(2, wait("futex")), thread(3, wait("mutex", 1, name="cfg")))
    assert far.summary.endswith("; meanwhile thread 3 waits for the mutex 0x1000 (cfg), which thread 1 holds.")
    both = verdict(thread(2, wait("condvar", expects=(3,))), thread(3, wait("condvar", expects=(2,))), pid=2)
    assert both.summary.endswith("they may wait for each other.")
    assert "no thread is known" not in both.summary


@pytest.mark.parametrize(("loop", "word"), [("step", "called at"), ("main", "which calls")])
def test_the_line_that_sleeps_and_the_loop_around_it(loop, word):
    """A loop in a library is called by the program; a loop of the program calls the function that sleeps."""
    library = Frame(0, FrameKind.PYTHON, "poll", file="/env/lib/python3.11/site-packages/a.py", line=1)
    own = [Frame(0, FrameKind.PYTHON, name, file="/srv/b.py", line=1) for name in ("step", "main")]
    where = {"step": library, "main": own[1]}[loop].place
    main = thread(1, wait("sleep", timed=True, repeated_at=where), python=(library, *own))
    assert f", {word} /srv/b.py:1 (step)" in verdict(main).summary


def test_a_doubt_about_the_main_thread_s_own_wait_does_not_repeat_it():
    lock = wait("futex", name="mylock")
    found = verdict(thread(1, lock), thread(2, wait("sleep", timed=True)))
    assert found.summary.count("mylock") == 1, found.summary
    assert found.summary.endswith(
        "No hang is proven; but its owner is not recorded in memory: a deadlock through it cannot be excluded."
    )
    other = verdict(thread(1, wait("sleep", timed=True)), thread(2, lock))
    assert "; but: thread 2 waits for an unidentified futex 0x1000 (mylock), and its owner" in other.summary
