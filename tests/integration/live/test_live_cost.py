"""What a trace costs operators that are not traced: nothing."""

from __future__ import annotations

import re
import sys

import pytest

from support.programs.harness import DISPATCH, INFERIORS, run

pytestmark = [pytest.mark.torch, pytest.mark.gdb]


def test_an_operator_that_is_not_traced_runs_at_full_speed() -> None:
    """Nobody stops it: a stop for each call would be 20,000 switches. A traced one stops."""
    for operator, calls, bounds in (("add", 20_000, range(200)), ("mm", 500, range(500, 100_000))):
        program = [sys.executable, INFERIORS / "costs.py", operator, str(calls)]
        outcome = run([DISPATCH, "dispatch-trace", "aten::mm", "--", *program])
        stops = re.search(r"^stops (\d+)", outcome.stdout + outcome.stderr, re.MULTILINE)
        assert stops is not None, outcome
        assert int(stops[1]) in bounds, outcome
