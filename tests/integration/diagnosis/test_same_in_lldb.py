"""Through LLDB a report is the one that is made without a debugger, save for who made it and the thread numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.installed import lldbs
from support.programs.harness import Inferior

MAY_DIFFER = ("debugger", "number", "paused_ms", "moved", "stops", "cut_short")


def comparable(value: Any) -> Any:
    """Without what may differ: who looks, and what the process did while somebody looked who lets it run meanwhile."""
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items() if key not in MAY_DIFFER}
    return [comparable(each) for each in value] if isinstance(value, list) else value


@pytest.mark.torch
@pytest.mark.gdb
@pytest.mark.parametrize("name", lldbs.parameters())
@pytest.mark.parametrize(("scenario", "core"), [("gil-mutex", True), ("meta-mm", False)])
def test_the_report_is_the_same(inferior: Callable[..., Inferior], name: str, scenario: str, core: bool) -> None:
    hung, words = inferior(scenario), ("dispatch-diagnose", "--why")
    through = hung.dispatch(*words, debugger="lldb", core=core, env={"LLDB": lldbs.executable(name)}).document
    assert through["target"]["debugger"] == "lldb"
    assert all(isinstance(thread["number"], int) for thread in through["threads"])
    if name == "lldb-22" and not core:
        assert through["target"]["paused_ms"] > 0  # it was let go before it was analysed
    assert comparable(through) == comparable(hung.dispatch(*words, debugger="none", core=core).document)
