"""What is read of a running interpreter at a stop, where its lists could not be read before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.cpython.sync import locks
from gdbext.cpython.threads.runtime import PythonRuntime, TornListError
from gdbext.errors import BadData
from support.fakes.fake_target import FakeTarget


@pytest.mark.parametrize(("torn", "at_stop"), [(2, False), (3, True)])
def test_lists_torn_each_time_are_read_at_the_stop(monkeypatch: pytest.MonkeyPatch, torn: int, at_stop: bool) -> None:
    """The third attempt is the last one before the stop."""
    tried: list[str] = []
    runtime = SimpleNamespace(sys_hexversion=lambda: None, interpreters=list, thread_states=list, anew=lambda: runtime)

    def detect(*_: Any) -> SimpleNamespace:
        tried.append("")
        if len(tried) <= torn:
            raise BadData("thread state at 0x1000 does not belong to interpreter 0")
        return runtime

    monkeypatch.setattr(locks.PythonRuntime, "detect", detect)
    modules: Any = None
    walk = locks.prepare_walk(FakeTarget({}), modules, modules)
    assert len(tried) == 3
    walk()
    assert (len(tried) == 4) is at_stop


@pytest.mark.parametrize(("hexversion", "error"), [(0x030B07F0, TornListError), (0x030A0DF0, BadData), (None, BadData)])
def test_a_layout_that_has_matched_is_not_blamed_for_a_torn_list(hexversion: int | None, error: type[BadData]) -> None:
    """sys.hexversion, read by that layout, says that it is the right one."""

    def torn() -> list[Any]:
        raise BadData("thread state at 0x1000 does not belong to interpreter 0")

    layout = SimpleNamespace(abi=SimpleNamespace(has_version=lambda value: value >> 16 == 0x030B))
    runtime: Any = SimpleNamespace(thread_states=torn, layout=layout, sys_hexversion=lambda: hexversion)
    with pytest.raises(BadData) as raised:
        PythonRuntime._states_unless_torn(runtime)
    assert type(raised.value) is error
