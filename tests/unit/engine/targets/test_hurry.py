"""While a process stands still for us nothing comes between, and afterwards all is as it was."""

from __future__ import annotations

import gc
import os

import pytest

from gdbext.engine.targets.live.stop_copy import real_time_priority


def place() -> tuple[int, int, int, bool]:
    """Policy, its priority, niceness, and whether garbage is collected."""
    return (
        os.sched_getscheduler(0),
        os.sched_getparam(0).sched_priority,
        os.getpriority(os.PRIO_PROCESS, 0),
        gc.isenabled(),
    )


def test_all_is_put_back_after_an_error() -> None:
    before = place()

    def fail() -> None:
        with real_time_priority():
            assert not gc.isenabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert place() == before


@pytest.mark.parametrize("nice_too", [False, True])
def test_where_the_system_refuses(monkeypatch: pytest.MonkeyPatch, nice_too: bool) -> None:
    wanted: list[int] = []

    def refuse(*_: object) -> None:
        raise PermissionError

    def set_nice(_which: int, _who: int, nice: int) -> None:
        wanted.append(nice)
        if nice_too:
            raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "setpriority", set_nice)
    before = place()
    with real_time_priority():
        assert not gc.isenabled()
    assert wanted == [-20, before[2]]
    assert place() == before


def test_our_thread_comes_before_all_that_share_the_processor_by_time() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        pytest.skip("real-time scheduling is not permitted here")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with real_time_priority():
        assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO
        child = os.fork()
        if not child:
            os._exit(os.sched_getscheduler(0))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == os.SCHED_OTHER
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
