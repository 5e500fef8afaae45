"""From threads to the verdict: every kind of the contract, its precedence, and what must not be said."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.kinds.blocked import BLOCKED
from gdbext.diagnosis.kinds.crashed import CRASH, RUNAWAY_RECURSION
from gdbext.diagnosis.kinds.deadlock import DEADLOCK, SELF_DEADLOCK
from gdbext.diagnosis.kinds.lost import ORPHANED_LOCK
from gdbext.diagnosis.report.thread_report import Frame, FrameKind, RunState
from gdbext.diagnosis.report.wait import OwnerCertainty
from gdbext.diagnosis.report.wait_detail import AbsentWorkers, Polled, PolledFile, Sleep, Unowned
from gdbext.diagnosis.report.wait_kind import Loss, LostThread
from gdbext.diagnosis.verdict import recursion
from gdbext.diagnosis.verdict.crash import Crash, CrashKind
from gdbext.diagnosis.verdict.graph import Observations
from gdbext.diagnosis.verdict.judgement import judge
from gdbext.diagnosis.waits import pool_table as pools
from gdbext.diagnosis.waits.pool_table import MissingWorkers
from gdbext.engine.targets.system.peer import ChildProcess
from gdbext.torch.stack import DispatchStage
from support.fakes.analysis_facts import step, thread, wait

MM = step("aten::mm", 4, 0x10, "Meta")


def judged(*threads, **more):
    return judge(Observations(threads, 1, **more))


def verdict(*threads, **more):
    return judged(*threads, **more).verdict.finding


def test_deadlock_names_both_and_their_operators():
    found = verdict(
        thread(1, wait("mutex", 2, address=0xABC, name="config_lock"), [MM], python_name="MainThread"),
        thread(2, wait("gil", 1), [step("aten::add", 1)], python_name="worker"),
    )
    assert (found.kind, found.step.op, found.threads) == (DEADLOCK, "aten::mm", (1, 2))
    assert [(e.tid, e.wait.kind.value, e.held_by) for e in found.cycle] == [(1, "mutex", 2), (2, "gil", 1)]
    for text in ("MainThread (tid 1)", "worker (tid 2)", "aten::mm", "aten::add", "the GIL", "0xabc (config_lock)"):
        assert text in found.summary


NO_WORKERS = MissingWorkers(pools.OPENMP, forked=True)


@pytest.mark.parametrize(
    ("waits", "kind", "part"),
    [
        (wait("mutex", 1), "self-deadlock", "itself"),
        (wait("mutex", 77, gone=True), "orphaned-lock", "77"),
        (wait("worker-pool", detail=AbsentWorkers(NO_WORKERS)), "missing-workers", "no OpenMP worker threads"),
        *((wait(kind), "blocked", "") for kind in ("condvar", "futex", "io", "python-lock")),
        (wait("sleep", timed=True), "blocked", ""),
        *((wait(kind), "waiting-external", "") for kind in ("collective", "device", "child-process")),
        (None, "busy", ""),
    ],
)
def test_inside_the_dispatcher(waits, kind, part):
    found = verdict(thread(1, waits, [MM]))
    assert (found.kind.value, found.threads) == (kind, (1,))
    assert (found.step.op, found.step.key, found.step.stage) == ("aten::mm", "Meta", DispatchStage.IN_KERNEL)
    assert [edge.held_by for edge in found.cycle] == [1] * (kind == "self-deadlock")
    assert part in found.summary


def joined(waits, name="", **more):
    """The main thread joins one that waits so."""
    return thread(1, wait("join", 2)), thread(2, waits, python_name=name, **more)


def sleeping(*polled, **more):
    return thread(1, wait("sleep", timed=True, detail=Sleep(*polled, **more)))


LATE = wait("barrier", 2, certainty=OwnerCertainty.INFERRED)
STATIC = wait("static-init", 2, certainty=OwnerCertainty.INFERRED, name="at::_ops::mm::call(...)::op")
WANTS_GIL, HAS_MUTEX = thread(2, wait("gil", 1)), thread(2, wait("mutex", 3))
GONE = LostThread(("loader",), Loss.ENDED, no_waker_clause="no thread is in load (f.py:4), which calls set() on it")
LEFT = LostThread(("a", "b"), Loss.LEFT_BEHIND, recorded=True, does="should run its job")
LOST = thread(1, wait("condvar", detail=Unowned(GONE)))
FEEDER = thread(3, wait("python-lock", 2), python_name="feeder")
WRITER = thread(3, wait("rwlock", 2, address=0x70, name="table"), python_name="writer")
FUTEX = wait("futex", name="mylock")
READS = (thread(1, wait("queue", timed=True, detail=Unowned(expects=(2,)))), thread(2, wait("io", name="read on fd 5")))
RUNS = (thread(1, wait("queue", detail=Unowned(expects=(2, 3)))), thread(2, wait("sleep")), thread(3))
FED = (*joined(wait("condvar", detail=Unowned(expects=(3,))), "consumer"), FEEDER)
HOOK = (thread(1, wait("python-lock", 3), python_name="main"), thread(3, wait("condvar", detail=Unowned(expects=(1,)))))
EACH_OTHER = (
    thread(1, wait("condvar", detail=Unowned(expects=(3,)))),
    thread(3, wait("condvar", detail=Unowned(expects=(1,)))),
)
READER = (*joined(wait("condvar"), "reader"), WRITER)
CONFIG = (*joined(wait("futex")), thread(3, wait("mutex", 1, name="cfg")))
DEEP = (thread(1, wait("gil", 2), [MM]), HAS_MUTEX, thread(3, wait("condvar", address=0xC0)))
BEGAN = (thread(1, wait("condvar", detail=Unowned(GONE._replace(recorded=True)))), thread(2))
OTHER_RUNS = (thread(1, wait("libc-lock"), [MM]), thread(2, None, [step("aten::add")]))
NO_PROOF = "No hang is proven; but its owner is not recorded in memory, so a deadlock cannot be ruled out."
HAS_ENDED = "the thread loader has exited, and no thread is in load (f.py:4), which calls set() on it."
STAYED = "the threads a, b, which should run its job, were started before the fork"
IN_DOUBT = "; but: thread 2 waits for the unidentified futex 0x1000 (mylock), and its owner"
READS_ON = "thread 2 also uses and may wake it; thread 2 waits in read on fd 5."
MAY_END = "which feeder (tid 3) also uses and may wake it; feeder (tid 3) waits"


@pytest.mark.parametrize(
    ("threads", "kind", "tids", "part"),
    [
        ([thread(1, STATIC), WANTS_GIL], "deadlock", (1, 2), "inferred"),
        (DEEP, "blocked", (1, 2, 3), "0xc0"),
        ([thread(1, LATE, [MM]), thread(2)], "busy", (1,), ""),
        ([thread(1, wait("gil", 2)), thread(2, wait("io", name="read of fd 3"))], "blocked", (1, 2), ""),
        ([thread(1, wait("io", name="poll of fd 3"))], "waiting-external", (1,), ""),
        ([sleeping(), thread(2, wait("io"))], "idle", (1,), "sleeps"),
        ([thread(1, wait("python-lock")), thread(2, wait("python-lock", address=0x20))], "blocked", (1,), "not known"),
        # What a loop that sleeps looks at.
        ([sleeping(PolledFile(looks_for="the file /lock"))], "waiting-external", (1,), "the file /lock"),
        ([sleeping(Polled(looks_for="process 7"), children=(ChildProcess(7),))], "waiting-external", (1,), "process 7"),
        ([sleeping(Polled(looks_for="stopped (which is False)"))], "idle", (1,), "stopped (which is False)"),
        # Who may end the main thread's wait.
        (READS, "waiting-external", (1, 2), READS_ON),
        (RUNS, "busy", (1, 3), "thread 3 runs; no thread is in the dispatcher."),
        (FED, "blocked", (1, 2, 3), MAY_END),
        (HOOK, "blocked", (1, 3), ", which main (tid 1) also uses: possibly a deadlock."),
        (EACH_OTHER, "blocked", (1, 3), "possibly a deadlock."),
        # What others want of the last thread: a lock that it keeps meanwhile is the reason that nobody comes.
        (READER, "blocked", (1, 2), "; meanwhile writer (tid 3) waits for the read-write lock 0x70 (table), which"),
        (READER, "blocked", (1, 2), "(table), which reader (tid 2) holds."),
        (CONFIG, "blocked", (1, 2), "; meanwhile thread 3 waits for the mutex 0x1000 (cfg), which thread 1 holds."),
        # Threads that should act and are not there.
        ([LOST], "blocked", (1,), HAS_ENDED),
        ([LOST, thread(2)], "busy", (1, 2), ""),  # it may come to it
        (BEGAN, "blocked", (1,), "has exited"),
        ([thread(1, wait("condvar", detail=Unowned(LEFT)))], "missing-workers", (1,), STAYED),
        # No hang is proven, and none is excluded.
        (OTHER_RUNS, "busy", (2,), "cannot be ruled out"),
        ([thread(1, FUTEX), thread(2, wait("sleep", timed=True))], "idle", (1,), NO_PROOF),
        ([sleeping(), thread(2, FUTEX)], "idle", (1, 2), IN_DOUBT),
    ],
)
def test_what_is_said(threads, kind, tids, part):
    found = verdict(*threads)
    assert (found.kind.value, found.threads) == (kind, tids)
    assert found.summary.endswith(part) if part.endswith(".") else part in found.summary
    assert found.summary.count("mylock") == (FUTEX in [each.wait for each in threads])
    assert not (part.endswith("for each other.") and "no thread is known" in found.summary)
    assert "which worker holds" not in found.summary


@pytest.mark.parametrize(
    ("threads", "kind"),
    [
        ([thread(1, wait("mutex", 1))], SELF_DEADLOCK),
        ([thread(1, wait("mutex", 2)), thread(2, wait("gil", 1))], DEADLOCK),
        ([thread(1, wait("mutex", 77, gone=True))], ORPHANED_LOCK),
        ([thread(1, wait("condvar"), [MM])], BLOCKED),
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


IDLE = [thread(i, wait("worker-pool"), state=RunState.IDLE, pool=pools.OPENMP) for i in range(2, 9)]
WANTS_TIMED = thread(2, wait("gil", 1, timed=True))
UNKNOWN = (sleeping(), thread(2, wait("futex")), thread(3, wait("futex")))


@pytest.mark.parametrize(
    ("threads", "more", "kind", "findings"),
    [
        ([thread(1, wait("io"), state=RunState.IDLE), *IDLE], {}, "idle", []),
        ([thread(1, wait("gil", 2), [MM]), thread(2), thread(3, wait("mutex", 2))], {}, "busy", []),  # contention
        ([thread(1, wait("mutex", 2, timed=True)), thread(2, wait("mutex", 1))], {}, "idle", [(1, 2)]),
        (UNKNOWN[:2], {}, "idle", [(2,)]),
        (UNKNOWN, {"moved": lambda: (2,)}, "idle", [(3,)]),
        (UNKNOWN, {"moved": lambda: (2, 3)}, "idle", []),
        # A timed wait that begins again refutes nothing.
        ([thread(1, wait("mutex", 2)), WANTS_TIMED], {"has_run": lambda tid: tid == 2}, "deadlock", [(1, 2)]),
        ([thread(1, wait("mutex", 77, gone=True), [MM])], {"has_run": lambda tid: tid == 77}, "idle", []),
    ],
)
def test_findings(threads, more, kind, findings):
    found = judged(*threads, **more)
    assert (found.verdict.kind.value, [each.threads for each in found.findings]) == (kind, findings)


def test_runaway_recursion_and_its_stack_overflow():
    deep = thread(1, None, [step("my::op", i, 0x10, event="redispatch") for i in range(100)], signal="SIGSEGV")
    crash = Crash(1, "SIGSEGV", 0x7FF0, CrashKind.STACK_OVERFLOW, "SIGSEGV at 0x7ff0: stack overflow")
    found = verdict(deep, crashes={1: crash}, recursions={1: recursion.detect(deep.dispatch, overflown=True)})
    assert (found.kind, found.step.op) == (RUNAWAY_RECURSION, "my::op")
    assert "K10" in found.summary
    assert "100 times" in found.summary


def test_crash_is_strongest():
    crash = Crash(2, "SIGSEGV", 0, CrashKind.NULL, "SIGSEGV at 0x0: a null pointer")
    crashed = thread(2, None, [step("my::f", 1, 1, "CPU", kernel="my_kernel")])
    found = verdict(thread(1, wait("mutex", 1)), crashed, crashes={2: crash})
    assert (found.kind, found.step.op, found.step.key, found.threads) == (CRASH, "my::f", "CPU", (2,))
    assert "my_kernel" in found.summary


def test_threads_that_wait_alike_are_one_finding():
    threads = [thread(i, wait("condvar", address=0xC0), [MM], stack_key=7) for i in range(1, 200)]
    found = judged(*threads, thread(900, wait("condvar"), [step("aten::add")], stack_key=8))
    assert [len(finding.threads) for finding in found.findings] == [199, 1]
    assert "198 more threads" in found.verdict.finding.summary


@pytest.mark.parametrize(("loop", "word"), [("step", "called at"), ("main", "which calls")])
def test_the_line_that_sleeps_and_the_loop_around_it(loop, word):
    """A loop in a library is called by the program; a loop of the program calls the function that sleeps."""
    library = Frame(0, FrameKind.PYTHON, None, "poll", file="/env/lib/python3.11/site-packages/a.py", line=1)
    own = [Frame(0, FrameKind.PYTHON, None, name, file="/srv/b.py", line=1) for name in ("step", "main")]
    where = {"step": library, "main": own[1]}[loop].place
    main = thread(1, wait("sleep", timed=True, detail=Sleep(repeated_at=where)), python_frames=(library, *own))
    assert f", {word} /srv/b.py:1 (step)" in verdict(main).summary
