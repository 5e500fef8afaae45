"""Threads that begin and end between a look at the list and the stop."""

from __future__ import annotations

import errno

import pytest

from gdbext.engine.arch.architectures import by_machine
from gdbext.engine.targets.live import proc_checks, ptrace
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import TargetGone

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
    with pytest.raises(TargetGone, match="ended while it was being stopped"):
        target._stop_all()
