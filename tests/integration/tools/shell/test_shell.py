"""``scripts/dispatch shell`` and gdbext.open on a live process."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gdbext
from support.programs import procfs
from support.programs.harness import ROOT, ready, wait_until

SLEEPS = set(map(str, procfs.SYSCALLS["sleep"]))


@pytest.mark.parametrize(
    ("options", "states"), [({"hold": True}, "t"), ({"stop": True}, "SR"), ({"stop": False}, "SR")]
)
def test_only_a_process_that_is_held_stays_stopped(options: dict[str, bool], states: str) -> None:
    with ready([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(100)"]) as sleeper:
        wait_until(lambda: procfs.syscall(sleeper.pid, sleeper.pid)[0] in SLEEPS, "it sleeps")
        with gdbext.open(pid=sleeper.pid, **options) as process:
            assert procfs.state(sleeper.pid, sleeper.pid) in states
            assert process.threads[0].python[0].function == "<module>"
            assert process.diagnose().verdict.kind.value == "idle"
        assert procfs.state(sleeper.pid, sleeper.pid) in "SR"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["-r", "tests/recordings/python-lock-abba.rec"], 0, "deadlock\n"),
        ([], 2, "specify what to examine"),
        (["--help"], 0, "--hold"),
    ],
)
def test_a_script_gets_the_process(words: list[str], status: int, said: str) -> None:
    options = {"input": "print(p.diagnose().verdict.kind.value)\n", "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-m", "gdbext", "shell", *words], cwd=ROOT, check=False, **options)
    assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done
