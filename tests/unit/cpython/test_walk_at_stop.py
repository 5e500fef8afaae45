"""What is read of a running interpreter at a stop, where its lists could not be read before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.cpython.sync import locks
from gdbext.errors import BadData
from support.fakes.fake_target import FakeTarget


@pytest.mark.parametrize(("torn", "at_stop"), [(2, False), (3, True)])
def test_lists_that_are_torn_each_time_are_read_at_the_stop(
    monkeypatch: pytest.MonkeyPatch, torn: int, at_stop: bool
) -> None:
    """The third attempt is the last one before the stop."""
    tried: list[str] = []
    runtime = SimpleNamespace(sys_hexversion=lambda: None, thread_states=list, anew=lambda: runtime)

    def detect(*_: Any) -> SimpleNamespace:
        tried.append("")
        if len(tried) <= torn:
            raise BadData("thread state at 0x1000 does not belong to interpreter 0")
        return runtime

    monkeypatch.setattr(locks.PythonRuntime, "detect", detect)
    monkeypatch.setattr(locks, "touch_gils", lambda _: None)
    modules: Any = None
    walk = locks.prepare_walk(FakeTarget({}), modules, modules)
    assert walk is not None
    assert len(tried) == 3
    walk()
    assert (len(tried) == 4) is at_stop
