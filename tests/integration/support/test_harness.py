"""The harness sees what it is there to see: disturbed inferiors; and nothing outlives it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from support.programs import harness, procfs

pytestmark = pytest.mark.torch


def test_a_stopped_and_a_dead_program_are_noticed() -> None:
    with harness.started("ring") as inferior:
        inferior.assert_undisturbed()
        os.kill(inferior.pid, signal.SIGSTOP)
        harness.wait_until(lambda: procfs.state(inferior.pid, inferior.pid) == "T", "it stops")
        assert "left in state T" in inferior.disturbance()
        os.kill(inferior.pid, signal.SIGKILL)
        inferior.process.wait()
        assert "gone" in inferior.disturbance()
    assert not inferior.folder.exists()


def test_a_killed_harness_leaves_no_process_behind() -> None:
    code = f"import sys; sys.path.insert(0, {str(harness.ROOT / 'tests')!r})\n"
    code += "from support.programs import harness\ni = harness.start('fork-mutex')\n"
    code += "print(i.process.pid, i.pid, i.folder, flush=True); sys.stdin.read()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    program, child, folder = parent.stdout.readline().split()
    parent.kill()
    parent.communicate()
    shutil.rmtree(folder)
    harness.wait_until(lambda: not procfs.alive(int(program)) and not procfs.alive(int(child)), "both are gone")
