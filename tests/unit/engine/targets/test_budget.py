"""The limits of a look: memory and time, in a process of our own and inside a debugger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gdbext.engine.targets import budget
from gdbext.engine.targets.budget import SECONDS, BudgetWatch, MemoryLimitExceeded, TimeLimit, TimeLimitExceeded
from gdbext.engine.targets.live import proc_checks, supervision
from gdbext.engine.targets.rooted_paths import ActingUser, Rights
from gdbext.errors import NoSuchProcess, TargetGone, UsageError
from gdbext.hosts.cli.options import Options, parse
from support.programs.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[4]
RECORDING = ROOT / "tests" / "recordings" / "meta-mm.rec"
GREEDY = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from gdbext.engine.targets.recording import replay_target
from gdbext.hosts.cli import launcher
def maps(self):
    BODY
replay_target.ReplayTarget.maps = maps
sys.exit(launcher.main(["-r", {str(RECORDING)!r}, "--json", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("body", "words", "said", "help_"),
    [
        # memory that is claimed, and not touched
        ("return [bytes(1 << 24) for _ in range(1000)]", (), "exceeds its memory limit", "--memory-limit GB"),
        ("while True: pass", ("--timeout", "0.5"), "no report within 0.5 s", "--timeout SECONDS"),
    ],
)
def test_a_look_that_takes_too_much_is_an_error(body: str, words: tuple[str, ...], said: str, help_: str) -> None:
    command = [sys.executable, "-S", "-c", GREEDY.replace("BODY", body), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert help_ in done.stderr
    assert said in json.loads(done.stdout)["errors"][0]["what"]


def options(*words: str) -> Options:
    found = Options()
    parse(words, found)
    return found


def test_what_has_an_end_has_a_limit() -> None:
    assert [options("-p", "1", *words).time_limit for words in ((), ("--timeout", "5"))] == [SECONDS, 5]
    for words in (("dispatch-trace", "mm"), ("dispatch-top",), ("--samples", "100")):
        assert options("-p", "1", *words).time_limit is None
    assert options("--", "python").time_limit is None


@pytest.mark.parametrize("value", ["0", "-1", "much", "nan", "1e12"])
def test_a_limit_that_is_none(value: str) -> None:
    with pytest.raises(UsageError, match="--memory-limit"):
        options("-p", "1", "--memory-limit", value)


def test_an_interruption_that_is_swallowed_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that comes while a destructor runs."""
    timers: list[tuple[float, ...]] = []
    monkeypatch.setattr(signal, "setitimer", lambda *timer: timers.append(timer))
    with TimeLimit(60):
        for _ in range(3):
            with pytest.raises(TimeLimitExceeded):
                signal.raise_signal(signal.SIGALRM)
    assert timers == [(signal.ITIMER_REAL, 60, budget._REPEAT_SECONDS), (signal.ITIMER_REAL, 0)]


class FakeClock:
    """Gives the seconds that it was set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self) -> None:
        """Let time pass for ever."""
        while True:
            self.now += 1


@pytest.mark.parametrize(("kind", "limits"), [(TimeLimitExceeded, (60, 0)), (MemoryLimitExceeded, (0, 60))])
def test_a_debugger_is_interrupted(kind: Any, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(budget, "_private_memory", clock)
    watched = BudgetWatch(*limits, clock)
    watched.begin()
    with pytest.raises(kind):
        clock.run()
    watched.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root opens files with another user's rights")
def test_a_file_system_that_does_not_answer_does_not_hold_the_look() -> None:
    """Another user's files are opened by a thread of its own: what holds that thread leaves ours free to be told."""
    acting, answer, answered = ActingUser(Rights(12345, 12345, ())), threading.Event(), []
    with pytest.raises(TimeLimitExceeded), TimeLimit(0.2):
        acting.run(lambda: answered.append(answer.wait(PATIENCE)))
    assert not answered
    answer.set()


def test_a_process_that_has_ended_before_a_debugger_would_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was an uncaught FileNotFoundError where a file system that needs a server was mounted."""
    with pytest.raises(NoSuchProcess, match="no process"):
        supervision.check_can_stop(1 << 22)

    def gone(_pid: int) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(proc_checks, "thread_stats", gone)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(TargetGone, match="has exited"):
            supervision.check_can_stop(process.pid)
        process.kill()


def test_the_memory_of_this_process_is_counted() -> None:
    before = budget._private_memory()
    held = b"x" * (100 << 20)
    assert budget._private_memory() - before > len(held) * 0.9
