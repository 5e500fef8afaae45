"""A few random looks at CPython's own test suite; scripts/look_at_random takes as many as one likes."""

from __future__ import annotations

import sys

import pytest

from support.programs.harness import ROOT, run

pytest.importorskip("test.test_queue", reason="this Python was installed without its tests")


def test_a_few_looks_find_nothing_that_must_never_be() -> None:
    words = [sys.executable, ROOT / "scripts" / "look_at_random", "--looks", "25", "--seed", "7", "--pause", "0.1"]
    outcome = run([*words, "test_queue", "test_thread", "test_threadsignals"])
    assert outcome.status == 0, outcome
    assert "25 looks" in outcome.stdout
