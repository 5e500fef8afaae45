"""scripts/plant_faults: the fault is in a copy while the command runs, and at no other time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.programs.harness import ROOT, run

DIFFERENCE = f"sh -c 'diff -r -x __pycache__ {ROOT}/gdbext gdbext'"
"""Fails in a copy of the tree while it has a fault."""


@pytest.mark.parametrize(
    ("command", "outcome", "evidence"),
    [(DIFFERENCE, "found", "exit status 1"), ("true", "missed", "-"), ("false", "unproven", "exit status 1")],
)
def test_one_fault(command: str, outcome: str, evidence: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    options = ["--seed", "1", "--count", "1", "--tests", "whole", "--page", page, "--command", command]
    tried = run([ROOT / "scripts/plant_faults", *options])
    assert tried.status == (outcome == "missed"), tried
    assert re.match(rf"1:0  {outcome} in \d+ s: {evidence}\n", tried.stdout), tried
    assert re.search(rf"^## {outcome.capitalize()}\n\n.*\n.*\n\| 1:0 \| gdbext/", page.read_text(), re.MULTILINE)
