"""The scripts that people start by hand: they work from a checkout and say how they are used."""

from __future__ import annotations

import json
import os
import re

import pytest

from support.programs import procfs
from support.programs.harness import ROOT, run

SCRIPTS = (
    "scripts/test",
    "scripts/check",
    "scripts/demo",
    "scripts/bench",
    "scripts/dispatch",
    "scripts/package",
    "scripts/plant_faults",
    "install.sh",
)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script: str) -> None:
    outcome = run([ROOT / script, "--help"])
    assert outcome.status == 0, outcome
    assert outcome.stdout.startswith("usage: ")
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.torch
@pytest.mark.parametrize("debugger", [pytest.param("gdb", marks=pytest.mark.gdb), "none"])
def test_the_demo_explains_its_hang_and_ends_it(debugger: str) -> None:
    outcome = run([ROOT / "scripts/demo", "--debugger", debugger])
    assert outcome.status == 0, outcome
    for word in ("aten::mm", "aten::matmul", "aten::linear", "AutogradMeta", "Meta", "meta_mm.py"):
        assert word in outcome.stdout, outcome
    hung = re.search(r"process (\d+) hangs now", outcome.stderr)
    assert hung, outcome
    assert not procfs.alive(int(hung[1]))


@pytest.mark.torch
@pytest.mark.gdb
def test_the_bench_measures_everybody() -> None:
    outcome = run([ROOT / "scripts/bench", "--runs", "0", "--json", "live"])
    assert outcome.status == 0, outcome
    (scene,) = json.loads(outcome.stdout)["scenes"]
    medians = {tool["name"]: tool["median"] for tool in scene["tools"]}
    assert len(medians) == 6
    assert all(medians.values()), json.dumps(scene, indent=1)
    assert all(tool["peak_mb"] > 1 for tool in scene["tools"])


@pytest.mark.torch
@pytest.mark.gdb
def test_the_bench_refuses_an_unknown_scene() -> None:
    assert run([ROOT / "scripts/bench", "nonsense"]).status == 2
