"""``scripts/dispatch ps`` beside processes with PyTorch, and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from gdbext.tools.ps import standing, torch_processes
from support.programs import harness
from support.programs.harness import wait_until

pytestmark = pytest.mark.torch


def test_the_processes_with_torch(inferior):
    hung = inferior("gil-mutex")
    found = listed()
    assert os.getpid() not in found
    assert found[hung.pid].user == os.getuid()
    assert "gil_mutex" in found[hung.pid].program
    document = json.loads(harness.run([harness.DISPATCH, "ps", "--json"]).stdout)
    assert [each["threads"] for each in document if each["pid"] == hung.pid] == [found[hung.pid].threads]
    outcome = harness.run([harness.DISPATCH, "ps"])
    lines = {line.split()[0]: line for line in outcome.stdout.splitlines()}
    assert lines["PID"].split() == ["PID", "USER", "RANK", "THREADS", "STANDS", "MAIN", "PROGRAM"]
    assert "gil_mutex" in lines[str(hung.pid)]


def listed():
    return {each.pid: each for each in torch_processes().processes}


def test_a_rank_that_stands_beside_one_that_runs():
    """The one sleeps since it was started, the other one uses the processor all the time."""
    ranked = {**os.environ, "RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with started("input()", ranked) as rank, started("while True: pass", dict(os.environ)) as busy:
        wait_until(lambda: (listed()[rank.pid].idle or 0) > 0, "it stands")
        found = listed()
        assert (found[rank.pid].rank, found[busy.pid].rank) == (3, None)
        assert (found[rank.pid].main_idle or 0) >= (found[rank.pid].idle or 0) > 0
        assert found[busy.pid].idle == 0, "it runs, or is about to"


@contextmanager
def started(what, environ):
    """A Python that has torch and then does that."""
    command = [sys.executable, "-c", f"import torch; print(flush=True)\n{what}"]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_durations():
    assert [standing(each) for each in (0.2, 40, 119, 700, 10_000, 400_000)] == [
        "now",
        "40 s",
        "119 s",
        "12 min",
        "2.8 h",
        "5 d",
    ]
