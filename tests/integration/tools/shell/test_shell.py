"""``scripts/dispatch shell`` and gdbext.open on a live process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gdbext
from support.programs import procfs
from support.programs.harness import wait_until

SLEEPS = set(map(str, procfs.SYSCALLS["sleep"]))
ROOT = Path(__file__).resolve().parents[4]
RECORDING = ROOT / "tests" / "recordings" / "python-lock-abba.rec"


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); answer = 42; time.sleep(100)"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    wait_until(lambda: procfs.syscall(process.pid, process.pid)[0] in SLEEPS, "it sleeps")
    yield process.pid
    process.kill()
    process.wait()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def shell(*words: str, script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gdbext", "shell", *words]
    return subprocess.run(command, input=script, capture_output=True, text=True, cwd=ROOT)


def test_a_process_that_is_held_stands_still_until_it_is_closed(sleeper: int) -> None:
    with gdbext.open(pid=sleeper, hold=True) as process:
        assert state(sleeper) == "t"
        assert process.threads[0].python[0].function == "<module>"
        assert "stands still" in process.standstill_text
    assert state(sleeper) in "SR"


@pytest.mark.parametrize("stop", [True, False])
def test_a_process_goes_on(sleeper: int, stop: bool) -> None:
    with gdbext.open(pid=sleeper, stop=stop) as process:
        assert state(sleeper) in "SR"
        assert process.threads[0].tid == sleeper
        assert process.diagnose().verdict.kind.value == "idle"


def test_a_script_gets_the_process() -> None:
    done = shell("-r", str(RECORDING), script="print(p.diagnose().verdict.kind.value)\n")
    assert (done.returncode, done.stdout) == (0, "deadlock\n"), done.stderr


def test_wrong_usage() -> None:
    done = shell(script="")
    assert done.returncode == 2
    assert "say what to look at" in done.stderr


def test_help() -> None:
    assert "--hold" in shell("--help", script="").stdout
