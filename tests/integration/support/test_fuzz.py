"""scripts/fuzz.py: some of its looks, of every kind that this machine can do, with fixed seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[3] / "scripts" / "fuzz.py"
LOOKS = 400
"""Ten seconds of processor time; nightly runs and people take more."""


def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FUZZ), *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_damage_costs_fields_and_nothing_else() -> None:
    done = fuzz("--looks", str(LOOKS))
    assert done.returncode == 0, done.stdout + done.stderr
    *_, total = [line.split() for line in done.stdout.splitlines() if line.startswith("all ")]
    assert int(total[1]) == LOOKS
