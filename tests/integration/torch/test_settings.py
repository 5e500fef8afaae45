"""dispatch-info --settings against what PyTorch says of itself, and the program that sets them again."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import INFERIORS, Inferior, run
from ways import Look

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

GetInferior = Callable[..., Inferior]
CHOSEN = ("num_threads", "num_interop_threads")
"""As long as nobody sets them, the libraries choose."""


def settings(look: Look, process: Inferior, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = look(process, "dispatch-info", "--settings", *words)["settings"]
    return found


def test_settings_of_a_program_that_changed_them_all(inferior: GetInferior, look: Look) -> None:
    process = inferior("settings", "changed")
    assert settings(look, process) == process.truth["settings"]


def test_settings_that_nobody_changed(inferior: GetInferior) -> None:
    process = inferior("settings")
    expected = {**process.truth["settings"], **dict.fromkeys(CHOSEN, "default")}
    assert settings(Look("live", "none"), process) == expected
    outcome = process.dispatch("dispatch-info", "--settings", debugger="none", json=False)
    assert "Set in this process" not in outcome.stdout
    assert "Not known" not in outcome.stdout


def test_the_program_that_sets_them_again(inferior: GetInferior, tmp_path: Path) -> None:
    process = inferior("settings", "changed")
    program = tmp_path / "again.py"
    settings(Look("live", "none"), process, "--reproduce", str(program))
    again = run([sys.executable, INFERIORS / "settings.py", "script", program], env={"PATH": os.environ["PATH"]})
    assert json.loads(again.stdout) == process.truth["settings"]
