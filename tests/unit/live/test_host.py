"""The host of live commands: one at a time, and only where there is a process to run."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.engine.targets.live.local_process import LentProcess
from gdbext.errors import ProbesRefused, TargetError, UsageError
from gdbext.live.host import BREAKPOINTS, PROBES, NoDebugger
from gdbext.live.waiting import NoProcess


def test_only_one_live_command_at_a_time() -> None:
    host = NoDebugger()
    already = pytest.raises(UsageError, match="dispatch-trace is running already")
    with host.running("dispatch-trace"), already, host.running("dispatch-break"):
        pytest.fail("two of them run")
    with pytest.raises(ValueError, match="on purpose"), host.running("dispatch-trace"):
        raise ValueError("on purpose")
    with host.running("dispatch-break"):
        pass


class Lent(LentProcess, NoProcess):
    """A process of a debugger's, here or of a gdbserver: with the id of one of this machine in any case."""

    def __init__(self, is_native: bool, *names: str) -> None:
        self.pid = os.getpid()
        self.is_native = is_native
        self._maps = [MemoryMapping(0, 4096, 0, name) for name in names or ("/bin/true",)]


def test_probes_are_for_processes_of_this_machine() -> None:
    here, elsewhere = (SimpleNamespace(target=Lent(is_native), has_torch=True) for is_native in (True, False))
    sessions: Any = (here, elsewhere)
    found = [NoDebugger().engines(None, session) for session in sessions]
    assert found == [(PROBES, BREAKPOINTS), (BREAKPOINTS,)]
    for session, instead in zip(sessions, ("--engine probes has none", "on its own machine")):
        (note,) = NoDebugger().note_on_breakpoints(session, None)
        assert "may end the process" in note
        assert instead in note
    (note,) = NoDebugger().note_on_breakpoints(sessions[0], ProbesRefused("no"))
    assert "CAP_BPF with CAP_PERFMON, or root" in note, "what would permit them"


def test_breakpoints_that_probes_hide_are_told() -> None:
    session: Any = SimpleNamespace(target=Lent(True, "/bin/true", "[uprobes]"))
    _, said = NoDebugger().note_on_breakpoints(session, None)
    assert "which runs past breakpoints" in said


def test_a_core_cannot_run_and_without_a_debugger_nothing_does() -> None:
    core: Any = SimpleNamespace(target=SimpleNamespace(is_core=True))
    process: Any = SimpleNamespace(target=SimpleNamespace(is_core=False))
    with pytest.raises(TargetError, match="cannot run"):
        NoDebugger().run_control(core)
    with pytest.raises(UsageError, match="needs a debugger"):
        NoDebugger().run_control(process)
    with pytest.raises(UsageError, match="needs a debugger"):
        NoDebugger().breakpoint_setter()
