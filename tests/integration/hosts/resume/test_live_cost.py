"""What a trace costs: nothing for operators that are not traced, little more than a breakpoint for those that are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.programs.harness import DISPATCH, INFERIORS, PATIENCE, UNDEMANGLED

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

ROUNDS = 10
"""Tries until ours is within the bound: the machine has other work, which only ever makes things slower. What it did to
the empty breakpoint made the bound no tighter, so that is measured once."""
SCRIPT = INFERIORS / "costs.py"
MM_CALL = "_ZN2at4_ops2mm4callERKNS_6TensorES4_"


def output(command: list[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


def number(pattern: str, text: str) -> float:
    """The number in the line of an output (among whatever else is printed)."""
    found = re.search(pattern, text, re.MULTILINE)
    assert found is not None, (pattern, text[-4000:])
    return float(found[1].replace(",", ""))


BEST = r"best ([\d.]+)"
"""Microseconds of the best call, as the program prints it."""
STOPS = r"^stops (\d+)"


def program(*words: str) -> list[str | Path]:
    return [sys.executable, SCRIPT, *words]


def traced(*words: str) -> list[str | Path]:
    return [DISPATCH, "dispatch-trace", "aten::mm", "--", *program(*words)]


def test_an_operator_that_is_not_traced_runs_at_full_speed() -> None:
    """Nobody stops it: a stop for each call would be 20,000 switches."""
    assert number(STOPS, output(traced("add", "20000", "1"))) < 200


@pytest.mark.alone
def test_a_stop_of_a_trace_costs_little_more_than_an_empty_breakpoint(tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    script.write_text(
        "import gdb\n"
        "class Empty(gdb.Breakpoint):\n"
        "    def stop(self):\n"
        "        return False\n"
        "gdb.execute('set pagination off')\n"
        "gdb.execute('catch load libtorch_python')\n"
        "gdb.execute('run')\n"
        f"Empty('*(char*)&{MM_CALL}')\n"
        "gdb.execute('continue')\n"
    )
    words, calls = ("mm", "200", "10"), 1 + 200 * 10
    settings = ["-iex", "set auto-load off", "-iex", "set debuginfod enabled off", *UNDEMANGLED]
    bare = ["gdb", "-nx", "-batch", *settings, "-x", script, "--args", *program(*words)]
    empty = number(BEST, output(bare))
    assert empty > 20, f"the breakpoint was not hit: {empty} µs a call"
    ours: list[float] = []
    while not ours or (min(ours) > 1.5 * empty and len(ours) < ROUNDS):
        text = output(traced(*words))
        assert number(r"^([\d,]+) dispatches traced", text) == 2 * calls, "of each call: AutogradCPU, then CPU"
        assert number(STOPS, text) > 0, "of the traced one each call stops"
        ours.append(number(BEST, text) / 2)
    assert min(ours) <= 1.5 * empty, (empty, ours)
