"""Threads that begin and end between a look at the list and the stop."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator

import pytest

from gdbext.engine.arch.architectures import by_machine
from gdbext.engine.targets.live import proc_checks, ptrace
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import NotPermitted, TargetGone
from support.programs import procfs
from support.programs.harness import wait_until

MAIN, ENDS_BEFORE_SEIZED, ENDS_BEFORE_INTERRUPTED, ENDS_WHILE_WAITED_FOR, BEGINS_MEANWHILE = range(7, 12)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> ProcTarget:
    """One whose process exists in these functions alone."""
    lists = [
        [MAIN, ENDS_BEFORE_SEIZED, ENDS_BEFORE_INTERRUPTED, ENDS_WHILE_WAITED_FOR],
        [MAIN, BEGINS_MEANWHILE],
        [MAIN, BEGINS_MEANWHILE],
    ]

    def end_at(gone: int, tid: int) -> None:
        if tid == gone:
            raise OSError(errno.ESRCH, "No such process")

    def stats(_pid: int, _known: object) -> dict[int, tuple[str, str]]:
        return dict.fromkeys(lists.pop(0) if lists else [], ("S", "python"))

    monkeypatch.setattr(proc_checks, "thread_stats", stats)
    monkeypatch.setattr(ptrace, "seize", lambda tid: end_at(ENDS_BEFORE_SEIZED, tid))
    monkeypatch.setattr(ptrace, "interrupt", lambda tid: end_at(ENDS_BEFORE_INTERRUPTED, tid))
    monkeypatch.setattr(ptrace, "poll", lambda tid: ptrace.PtraceStop(tid == ENDS_WHILE_WAITED_FOR, 0))
    made = object.__new__(ProcTarget)
    made.pid, made.architecture, made._threads, made._left = MAIN, by_machine(62), {}, {}
    return made


def test_those_that_are_there_are_stopped(target: ProcTarget) -> None:
    target._stop_all()
    assert [thread.tid for thread in target.threads()] == [MAIN, BEGINS_MEANWHILE]
    assert all(thread.stopped for thread in target._threads.values())


def test_all_end_before_they_are_stopped(target: ProcTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptrace, "poll", lambda _: ptrace.PtraceStop(True, 0))
    with pytest.raises(TargetGone, match=r"^process 7 has ended; "):
        target._stop_all()


@pytest.fixture
def traced() -> Iterator[tuple[int, int]]:
    """A process, and the one that traces it."""
    pid = os.fork()
    if not pid:
        signal.pause()
    tracer = os.fork()
    if not tracer:
        ptrace.seize(pid)
        signal.pause()
    wait_until(lambda: procfs.status(pid)["TracerPid"] == str(tracer), "it is traced")
    yield pid, tracer
    for each in (tracer, pid):
        os.kill(each, signal.SIGKILL)
        os.waitpid(each, 0)


class FakeClock:
    """Its time passes in sleeps alone; before the one that is due then, it kills the process ``ends``."""

    def __init__(self, ends: int = 0) -> None:
        self.now = 0.0
        self.ends = ends

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.ends and self.now > 0.1:
            os.kill(self.ends, signal.SIGKILL)
            os.waitid(os.P_PID, self.ends, os.WEXITED | os.WNOWAIT)
            self.ends = 0


def test_a_tracer_that_lets_go_soon_is_waited_for(traced: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    pid, tracer = traced
    clock = FakeClock(ends=tracer)
    monkeypatch.setattr(proc_checks, "time", clock)
    proc_checks.check_process(pid)
    assert procfs.status(pid)["TracerPid"] == "0"
    assert 0.1 < clock.now < 0.2


def test_a_tracer_that_stays_is_named(traced: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc_checks, "time", FakeClock())
    with pytest.raises(NotPermitted, match="already being traced by process"):
        proc_checks.check_process(traced[0])


def test_a_thread_that_was_traced_just_now_is_tried_again(target: ProcTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [MAIN]

    def seize(tid: int) -> None:
        if tid in refused:
            refused.remove(tid)
            raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(ptrace, "seize", seize)
    monkeypatch.setattr(proc_checks, "check_not_traced", lambda *_: None)
    monkeypatch.setattr(proc_checks, "thread_state", lambda *_: "S")
    target._stop_all()
    assert MAIN in [thread.tid for thread in target.threads()]
