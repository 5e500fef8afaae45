"""While a process stands still for us nothing comes between, and afterwards all is as it was."""

from __future__ import annotations

import gc
import os

import pytest

from gdbext.engine.targets.live.stop_copy import real_time_priority


def place() -> tuple[int, int, int, bool]:
    """Policy, its priority, niceness, and whether garbage is collected."""
    priority = os.sched_getparam(0).sched_priority
    return os.sched_getscheduler(0), priority, os.getpriority(os.PRIO_PROCESS, 0), gc.isenabled()


def test_all_is_put_back_after_an_error() -> None:
    before = place()

    with pytest.raises(KeyError, match="False"), real_time_priority():
        raise KeyError(gc.isenabled())
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
