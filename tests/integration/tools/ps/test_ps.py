"""``scripts/dispatch ps`` beside processes with PyTorch, and without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gdbext.tools.ps import TorchProcess, idle_text, torch_processes
from support.programs import harness
from support.programs.harness import Start, wait_until

pytestmark = pytest.mark.torch


def listed() -> dict[int, TorchProcess]:
    return {each.pid: each for each in torch_processes().processes}


def test_the_processes_with_torch(inferior: Start) -> None:
    hung, found = inferior("gil-mutex"), listed()
    assert os.getpid() not in found
    assert found[hung.pid].user == os.getuid()
    command = Path(f"/proc/{hung.pid}/cmdline").read_text().replace("\0", " ").rstrip()
    assert "gil-mutex" in command
    assert found[hung.pid].program == (command if len(command) <= 100 else command[:99] + "…")
    document = json.loads(harness.run([harness.DISPATCH, "ps", "--json"]).stdout)
    assert [each["threads"] for each in document if each["pid"] == hung.pid] == [found[hung.pid].threads]
    lines = {line.split()[0]: line for line in harness.run([harness.DISPATCH, "ps"]).stdout.splitlines()}
    assert lines["PID"].split() == ["PID", "USER", "RANK", "THREADS", "IDLE", "MAIN", "PROGRAM"]
    assert lines[str(hung.pid)].endswith(found[hung.pid].program)


def test_a_rank_that_stands_beside_one_that_runs(inferior: Start) -> None:
    ranked = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    rank, busy = inferior("meta-mm", env=ranked).pid, inferior("meta-mm-spin").pid
    wait_until(lambda: (listed()[rank].idle or 0) > 0, "it stands")
    found = listed()
    assert (found[rank].rank, found[busy].rank) == (3, None)
    assert (found[rank].main_idle or 0) >= (found[rank].idle or 0) > 0
    assert found[busy].idle == 0, "it runs, or is about to"


def test_durations() -> None:
    texts = [idle_text(each) for each in (0.2, 40, 119, 700, 10_000, 400_000)]
    assert texts == ["now", "40 s", "119 s", "12 min", "2.8 h", "5 d"]
