"""The host of live commands: one at a time, only where there is a process to run, and interrupted at a good moment."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.engine.targets.live.local_process import LentProcess
from gdbext.errors import ProbesRefused, TargetError, UsageError
from gdbext.live import timed_run
from gdbext.live.host import BREAKPOINTS, PROBES, NoDebugger
from gdbext.live.timed_run import DeferredInterrupt, SilenceNotice
from gdbext.live.waiting import NoProcess
from support.fakes.fake_target import FakeTarget


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
    assert "it runs past breakpoints" in said


def test_a_core_cannot_run_and_without_a_debugger_nothing_does() -> None:
    core: Any = SimpleNamespace(target=FakeTarget({}, kind="core"))
    process: Any = SimpleNamespace(target=FakeTarget({}))
    with pytest.raises(TargetError, match="cannot run"):
        NoDebugger().run_control(core)
    with pytest.raises(UsageError, match="needs a debugger"):
        NoDebugger().run_control(process)
    with pytest.raises(UsageError, match="needs a debugger"):
        NoDebugger().breakpoint_setter()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its time is ``now``."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(timed_run, "time", clock)
    return clock


def test_two_signals_of_one_wish_end_it_once(clock: SimpleNamespace) -> None:
    """As ``timeout -s INT`` sends them: to its child, and to the group that the child is in."""
    with DeferredInterrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        clock.now += 0.9
        os.kill(os.getpid(), signal.SIGINT)
        assert not interrupt.sleep(10)
    assert interrupt.came


def test_a_later_one_interrupts_at_once(clock: SimpleNamespace) -> None:
    with DeferredInterrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert not interrupt.sleep(10)
        clock.now += 1.1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("is_here", "has_come", "said"), [(False, False, ["no dispatch in 0 s"]), (True, False, ["ran"]), (False, True, [])]
)
def test_a_silent_run_says_so(is_here: bool, has_come: bool, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_run, "SILENT_AFTER", 0.03)
    monkeypatch.setattr(timed_run, "_SETTLED", 0.01)
    shown: list[str] = []
    pid = os.getpid() if is_here else 0
    with SilenceNotice(pid, "dispatch", "did something else", lambda: has_come, shown.append) as notice:
        notice._thread.join()
    assert len(shown) == len(said)
    assert all(words in text for words, text in zip(said, shown))
    assert notice.text == "".join(shown)
