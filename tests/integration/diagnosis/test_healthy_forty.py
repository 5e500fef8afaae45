"""No false alarm: forty small programs that work, looked at while they do.

A sample of them each time; GDBEXT_HEALTHY_LOOKS=5 looks at all of them five times each, which takes some minutes.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from support.programs.harness import started

PROGRAM = Path(__file__).resolve().parents[2] / "inferiors" / "healthy_forty.py"
LOOKS = int(os.environ.get("GDBEXT_HEALTHY_LOOKS", "0"))
HELPERS = ("for_ever", "beside", "python_work", "native_work")
NAMES = [
    node.name
    for node in ast.parse(PROGRAM.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name not in HELPERS
]
SAMPLE = ("between_steps", "many_native_threads", "pool_that_starts", "torch_many_threads")
QUIET = {"busy", "idle", "waiting-external", "slow", "starved"}
"""The last two are true where others keep the machine busy."""


def test_there_are_forty() -> None:
    assert len(NAMES) == 40
    assert set(SAMPLE) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES if LOOKS else SAMPLE)
def test_no_false_alarm(name: str) -> None:
    with started("healthy-forty", name) as target:
        for _ in range(LOOKS or 1):
            report = target.dispatch("dispatch-diagnose", debugger="none").document
            assert report["verdict"]["kind"] in QUIET, report["verdict"]
