"""dispatch-info --settings against what PyTorch says of itself, and the program that sets them again."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from support.programs.harness import INFERIORS, Start, run
from support.truth import settings_truth

pytestmark = [pytest.mark.torch, pytest.mark.gdb]


@pytest.mark.parametrize(
    ("program", "core"), [("everything", False), ("everything", True), ("contexts", False), ("unchanged", False)]
)
def test_settings(inferior: Start, program: str, core: bool) -> None:
    assert settings_truth.compare(inferior("settings", program), core) == {}


def test_settings_that_nobody_changed(inferior: Start) -> None:
    outcome = inferior("settings", "unchanged").dispatch("dispatch-info", "--settings", debugger="none", json=False)
    assert not re.search("Changed in this process|Unknown", outcome.stdout)


def test_the_program_that_sets_them_again(inferior: Start, tmp_path: Path) -> None:
    process = inferior("settings", "everything")
    program = tmp_path / "again.py"
    process.dispatch("dispatch-info", "--settings", "--reproduce", str(program), debugger="none")
    again = run([sys.executable, INFERIORS / "settings.py", "script", program], env={"PATH": os.environ["PATH"]})
    said = json.loads(again.stdout)
    said["generators"][0]["drawn"] = process.truth["settings"]["generators"][0]["drawn"]  # it drew none itself
    assert said == process.truth["settings"]
