"""Recorded processes, parts of them replaced by garbage: nothing but typed errors, in time, and no false claim."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.fuzzing import recording_kinds, worker
from support.fuzzing.look import Kind
from support.programs.harness import ROOT


@pytest.mark.timeout(300, method="thread")  # a signal of its own would be left behind by each look
@pytest.mark.parametrize("seed", range(0, 4000, 1000))
@pytest.mark.parametrize("kind", recording_kinds.KINDS, ids=lambda kind: kind.name)
def test_garbage_in_what_is_read(kind: Kind, seed: int) -> None:
    """Another recording, command and damage with each seed (see scripts/fuzz.py)."""
    result = worker.run(kind, seed)
    assert result.failures == []


@pytest.mark.slow
def test_looks_of_every_kind_that_this_machine_can_do() -> None:
    """Ten seconds of processor time; nightly runs and people take more."""
    command = [sys.executable, str(ROOT / "scripts" / "fuzz.py"), "--looks", "400"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, total = [line.split() for line in done.stdout.splitlines() if line.startswith("all ")]
    assert total[1] == "400"
