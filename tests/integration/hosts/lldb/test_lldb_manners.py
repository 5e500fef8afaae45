"""LLDB at a terminal: Ctrl+C in the middle of a command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from gdbext.engine.targets.live.proc_checks import thread_states
from support.installed import lldbs
from support.programs import procfs
from support.programs.debugger_terminal import DebuggerTerminal
from support.programs.harness import ROOT, Inferior, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.parametrize("name", lldbs.parameters())]


def test_control_c_in_a_users_lldb(inferior: Callable[..., Inferior], name: str) -> None:
    """The command ends, LLDB and the commands stay usable, and the process goes on after detach."""
    hang = inferior("meta-mm")
    start = [lldbs.executable(name), "--no-lldbinit", "--no-use-colors", *lldbs.reading_little()]
    with closing(DebuggerTerminal(start, "(lldb) ")) as terminal:
        terminal.until(terminal.prompt)
        terminal.answer(f"process attach --pid {hang.pid}", "Architecture set to")
        terminal.answer(f"command script import {ROOT}/gdbext/lldb_init.py")
        terminal.answer("dispatch-bt", "op=[aten::linear]")
        for seconds in (0.1, 0.5):
            before = procfs.processor_time(terminal.process.pid)
            terminal.type("dispatch-op --all\n")
            wait_until(lambda: procfs.processor_time(terminal.process.pid) > before + seconds, "operators are read")  # noqa: B023
            terminal.type("\x03")
            seen = terminal.until("the process was not changed")
            assert "error: interrupted" in seen
            assert "Traceback" not in seen
            terminal.answer("dispatch-bt", "op=[aten::linear]")
        terminal.type("dispatch-diagnose --samples 2 --interval 60\n")
        wait_until(lambda: thread_states(hang.pid)[hang.pid] != "t", "the process runs between the looks")
        terminal.type("\x03")
        terminal.until("the process was not changed")
        terminal.type("dispatch-trace aten::mm\n")
        wait_until(lambda: thread_states(hang.pid)[hang.pid] != "t", "the process runs")
        terminal.type("\x03")
        assert "0 dispatches traced; ended: interrupted" in terminal.until("interrupted")
        terminal.answer("dispatch-bt", "op=[aten::linear]")  # it stands again
        terminal.answer("detach", "detached")
        terminal.type("quit\n")
        wait_until(lambda: terminal.process.poll() is not None, "LLDB ends")
