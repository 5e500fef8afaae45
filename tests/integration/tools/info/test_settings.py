"""dispatch-info --settings against what PyTorch says of itself, and the program that sets them again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.programs.harness import INFERIORS, Inferior, run
from support.programs.ways import Look
from support.truth import settings_truth

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

GetInferior = Callable[..., Inferior]


def settings(look: Look, process: Inferior, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = look(process, "dispatch-info", "--settings", *words)["settings"]
    return found


@pytest.mark.parametrize("program", ["everything", "saved-tensors"])
def test_settings_of_a_program_that_changed_them(inferior: GetInferior, look: Look, program: str) -> None:
    process = inferior("settings", program)
    found = settings(look, process)
    assert settings_truth.differences(found, process.truth["settings"], process.tid("main")) == {}


def test_settings_that_nobody_changed(inferior: GetInferior) -> None:
    process = inferior("settings", "unchanged")
    found = settings(Look("live", "none"), process)
    assert settings_truth.differences(found, process.truth["settings"], process.tid("main")) == {}
    outcome = process.dispatch("dispatch-info", "--settings", debugger="none", json=False)
    assert "Set in this process" not in outcome.stdout
    assert "Not known" not in outcome.stdout


def test_the_program_that_sets_them_again(inferior: GetInferior, tmp_path: Path) -> None:
    process = inferior("settings", "everything")
    program = tmp_path / "again.py"
    settings(Look("live", "none"), process, "--reproduce", str(program))
    again = run([sys.executable, INFERIORS / "settings.py", "script", program], env={"PATH": os.environ["PATH"]})
    said = json.loads(again.stdout)
    said["generators"][0]["drawn"] = process.truth["settings"]["generators"][0]["drawn"]  # it drew none itself
    assert said == process.truth["settings"]
