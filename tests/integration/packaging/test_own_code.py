"""A checkout: code of ours is imported from our own folder, whatever lies in the one that a program is started in."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.tools.ranks.other_machines import answer, archive, remote_script
from support.programs import procfs
from support.programs.harness import DISPATCH, ROOT, Start, run

NAMES = ("json", "zipfile", "base64", "socket", "argparse", "pygments", "elftools", "gdbext")
TRAP = "open({witness!r}, 'a').write(__file__)\nraise SystemExit(9)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with modules that are named like those that we import, and none of which may be run."""
    made, witness = tmp_path / "folder", tmp_path / "witness"
    made.mkdir()
    for name in NAMES:
        (made / f"{name}.py").write_text(TRAP.format(witness=str(witness)))
    yield made
    assert not witness.exists(), witness.read_text()


@pytest.mark.parametrize("framed", [False, True])
def test_the_script_for_other_machines(folder: Path, framed: bool) -> None:
    """srun starts it in the caller's folder, kubectl in the pod's."""
    options = argparse.Namespace(timeout=60.0, job="no-such-job", python=sys.executable)
    words = ["sh", "-c", remote_script(options, framed)]
    done = subprocess.run(words, input=archive(), capture_output=True, cwd=folder, check=False)
    if framed:
        assert done.stdout.startswith(b"gdbext "), done
    else:
        (machine,) = answer("here", done.stdout, done.returncode).unreached
        assert "no-such-job" in machine.reason


def test_python_m(folder: Path) -> None:
    (folder / "gdbext.py").unlink()
    words = [sys.executable, "-m", "gdbext", "-r", "/nonexistent", "--json"]
    assert run(words, cwd=folder, env={"PYTHONPATH": str(ROOT)}).document["errors"]


@pytest.mark.gdb
@pytest.mark.torch
def test_in_a_debugger_of_ours(folder: Path, inferior: Start) -> None:
    words = [DISPATCH, "-p", str(inferior("meta-mm").pid), "--debugger", "gdb", "dispatch-bt", "--json"]
    assert run(words, cwd=folder, env={"PYTHONPATH": str(folder)}).document["threads"]


@pytest.mark.torch
def test_the_demo_explains_its_hang_and_ends_it() -> None:
    outcome = run([ROOT / "scripts/demo", "--debugger", "none"])
    assert outcome.status == 0, outcome
    for word in ("aten::mm", "aten::matmul", "aten::linear", "AutogradMeta", "Meta", "meta_mm.py"):
        assert word in outcome.stdout, outcome
    (hung,) = re.findall(r"process (\d+) hangs now", outcome.stderr)
    assert not procfs.alive(int(hung))
