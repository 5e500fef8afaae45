"""What a report imports: half of the time of a look is Python starting up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COSTLY = ("logging", "subprocess", "tempfile", "random", "pathlib", "urllib", "ipaddress")
"""Modules of the standard library that take 2 to 15 ms to import, and that a look does not need."""
OTHERS = ("gdb", "lldb", "pygments", "elftools", "numpy", "capstone")
LOOK = """
import os, sys
before = set(sys.modules)
from gdbext.hosts.cli import launcher
out = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
status = launcher.main(sys.argv[1:])
sys.stdout.flush()
imported = sorted(set(sys.modules) - before)
import json
os.write(out, json.dumps([status, imported]).encode())
"""


def imported_by(*arguments: str) -> set[str]:
    code = f"import sys; sys.path.append({str(ROOT)!r})\n{LOOK}"
    command = [sys.executable, "-I", "-S", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, imported = json.loads(done.stdout)
    assert status == 0
    return set(imported)


@pytest.mark.parametrize("command", ["dispatch-bt", "dispatch-diagnose"])
def test_a_look_imports_nothing_costly(command: str) -> None:
    imported = imported_by("-r", str(ROOT / "tests/recordings/meta-mm.rec"), command)
    assert "gdbext.diagnosis.session" in imported
    assert imported & {*COSTLY, *OTHERS} == set()


def test_help_imports_no_reader() -> None:
    imported = {name for name in imported_by("--version") if name.startswith("gdbext.")}
    readers = ("gdbext.torch", "gdbext.cpython", "gdbext.diagnosis.")
    assert {name for name in imported if name.startswith(readers)} == {"gdbext.diagnosis.tool_mode"}
