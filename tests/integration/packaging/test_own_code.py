"""Code of ours is imported from our own folder, whatever lies in the one that a program is started in."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gdbext.tools.ranks.other_machines import answer, archive, remote_script
from support.programs.harness import ROOT, Inferior, run

NAMES = ("json", "zipfile", "base64", "socket", "argparse", "pygments", "elftools", "gdbext")
TRAP = "open({witness!r}, 'a').write(__file__)\nraise SystemExit(9)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with modules that are named like those that we import, and that write ``witness``."""
    made = tmp_path / "folder"
    made.mkdir()
    for name in NAMES:
        (made / f"{name}.py").write_text(TRAP.format(witness=str(tmp_path / "witness")))
    return made


@pytest.mark.parametrize("framed", [False, True])
def test_the_script_for_other_machines(folder: Path, framed: bool) -> None:
    """srun starts it in the caller's folder, kubectl in the pod's."""
    options = argparse.Namespace(timeout=60.0, job="no-such-job", python=sys.executable)
    done = subprocess.run(
        ["sh", "-c", remote_script(options, framed)], input=archive(), capture_output=True, cwd=folder, check=False
    )
    assert not (folder.parent / "witness").exists(), (folder.parent / "witness").read_text()
    if framed:
        assert done.stdout.startswith(b"gdbext "), done
    else:
        reasons = [each.reason for each in answer("here", done.stdout, done.returncode).unreached]
        assert "no-such-job" in reasons[0]


def test_python_m(folder: Path) -> None:
    (folder / "gdbext.py").unlink()
    environment = {"PYTHONPATH": str(ROOT)}
    outcome = run([sys.executable, "-m", "gdbext", "-r", "/nonexistent", "--json"], cwd=folder, env=environment)
    assert outcome.document["errors"], outcome
    assert not (folder.parent / "witness").exists(), (folder.parent / "witness").read_text()


@pytest.mark.gdb
@pytest.mark.torch
def test_in_a_debugger_of_ours(folder: Path, inferior: Callable[..., Inferior]) -> None:
    hang = inferior("meta-mm")
    words = [ROOT / "scripts/dispatch", "-p", str(hang.pid), "--debugger", "gdb", "dispatch-bt", "--json"]
    outcome = run(words, cwd=folder, env={"PYTHONPATH": str(folder)})
    assert outcome.document["threads"], outcome
    assert not (folder.parent / "witness").exists(), (folder.parent / "witness").read_text()
