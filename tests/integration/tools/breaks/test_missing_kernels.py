"""dispatch-break missing: each stop is compared with the error that the program gets, and with the call it told of."""

from __future__ import annotations

import json
import sys

import pytest

from support.programs.harness import DISPATCH, INFERIORS, run
from support.programs.user_debuggers import SOURCE, gdb

pytestmark = [pytest.mark.torch, pytest.mark.gdb]
SCRIPT = INFERIORS / "missing_calls.py"


def output(*words: str) -> tuple[list[str], list[str]]:
    """Lines of the report, and those of the program, which gdb writes to standard error."""
    outcome = run([DISPATCH, *words, "--", sys.executable, SCRIPT])
    assert outcome.status == 0, outcome
    return outcome.stdout.splitlines(), outcome.stderr.splitlines()


def test_each_missing_kernel_is_a_stop_and_nothing_else_is() -> None:
    report, program = output("dispatch-break", "missing", "--continue")
    starts = [number for number, text in enumerate(report) if text.startswith("dispatch-break: ")]
    stops = iter(report[begin:end] for begin, end in zip(starts, [*starts[1:], len(report)]))
    calls = [number for number, text in enumerate(program) if text.startswith("TRUTH ")]
    for begin in calls:
        name, keyset, line = json.loads(program[begin].partition(" ")[2])
        if not program[begin + 1].startswith("ERROR "):
            continue
        key = program[begin + 1].split("from the '")[1].split("'")[0]
        told = next(stops)
        assert told[0].startswith(f"dispatch-break: {name} at missing: no kernel, PyTorch is about to raise"), told
        assert {f"  key {key}, keyset {keyset}", f"  key {key}, keyset unknown"} & {*told}, told
        assert f"  at {SCRIPT}:{line} (call)" in told
        assert any(text.startswith("  kernels exist for ") and key not in text for text in told), told
    assert (len(starts), next(stops, None)) == (2, None)
    assert "  arguments x=f32[3, 2] SparseCPU" in report
    assert "  key SparseCPU, keyset DispatchKeySet(SparseCPU)" in report


def test_only_the_named_operator_stops() -> None:
    lines, _ = output("dispatch-break", "missing", "aten::special_bessel_j0")
    stops = [line for line in lines if line.startswith("dispatch-break: ")]
    assert len(stops) == 1
    assert "special_bessel_j0 at missing" in stops[0]


def test_a_trace_marks_it() -> None:
    lines, _ = output("dispatch-trace", "aten::special_airy_ai")
    marked = [line for line in lines if "no kernel" in line]
    assert len(marked) == 1
    assert "op=[aten::special_airy_ai], key=[SparseCPU], no kernel" in marked[0]


def test_the_stack_at_the_stop_marks_it() -> None:
    commands = "dispatch-break missing", "run", "dispatch-bt"
    text = gdb(SOURCE, *commands, of=(sys.executable, SCRIPT), timeout=300).stdout
    first = text.split("[redispatch] op=[aten::special_airy_ai]", 1)[1].split("[call]", 1)[0]
    assert "no kernel: PyTorch raises NotImplementedError here" in first, text
