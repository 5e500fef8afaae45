"""The host of live commands: one at a time, and only where there is a process to run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.errors import TargetError, UsageError
from gdbext.hosts.resume.host import NoDebugger


def test_only_one_live_command_at_a_time() -> None:
    host = NoDebugger()
    already = pytest.raises(UsageError, match="dispatch-trace is running already")
    with host.running("dispatch-trace"), already, host.running("dispatch-break"):
        pytest.fail("two of them run")
    with host.running("dispatch-break"):
        pass


def test_a_command_that_fails_makes_room_for_the_next() -> None:
    host = NoDebugger()
    with pytest.raises(ValueError, match="on purpose"), host.running("dispatch-trace"):
        raise ValueError("on purpose")
    with host.running("dispatch-trace"):
        pass


def test_a_core_cannot_run_and_without_a_debugger_nothing_does() -> None:
    core: Any = SimpleNamespace(target=SimpleNamespace(is_core=True))
    process: Any = SimpleNamespace(target=SimpleNamespace(is_core=False))
    with pytest.raises(TargetError, match="cannot run"):
        NoDebugger().run_control(core)
    with pytest.raises(UsageError, match="needs a debugger"):
        NoDebugger().run_control(process)
    with pytest.raises(UsageError, match="needs a debugger"):
        NoDebugger().breakpoint_setter()
