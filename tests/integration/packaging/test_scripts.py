"""scripts/demo works from a checkout."""

from __future__ import annotations

import re

import pytest

from support.programs import procfs
from support.programs.harness import ROOT, run


@pytest.mark.torch
def test_the_demo_explains_its_hang_and_ends_it() -> None:
    outcome = run([ROOT / "scripts/demo", "--debugger", "none"])
    assert outcome.status == 0, outcome
    for word in ("aten::mm", "aten::matmul", "aten::linear", "AutogradMeta", "Meta", "meta_mm.py"):
        assert word in outcome.stdout, outcome
    hung = re.search(r"process (\d+) hangs now", outcome.stderr)
    assert hung, outcome
    assert not procfs.alive(int(hung[1]))
