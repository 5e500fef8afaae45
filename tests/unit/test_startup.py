"""What a report imports: half of the time of a look is Python starting up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gdbext.engine.targets.live import supervision

ROOT = Path(__file__).resolve().parents[2]
COSTLY = ("dataclasses", "inspect", "logging", "subprocess", "tempfile", "importlib.metadata", "random",
          "pathlib", "urllib", "ipaddress", "argparse", "gettext", "copy")  # fmt: skip
"""Modules of the standard library that take 2 to 15 ms to import."""
MOST = {"dispatch-bt": 142, "dispatch-diagnose": 176, "all-threads": 168}
"""Modules of ours that a look imports; before the rooms were moved: 191, 294, 276. Five of them look for the
thread that should set the event that this recording waits for."""
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


@pytest.mark.parametrize("command", ["dispatch-bt", "dispatch-diagnose", "all-threads"])
def test_a_look_imports_nothing_costly(command: str) -> None:
    imported = imported_by("-r", str(ROOT / "tests/recordings/meta-mm.rec"), command)
    assert "gdbext.diagnosis.session" in imported
    assert imported & {*COSTLY, *OTHERS} == set()
    assert len([name for name in imported if name.startswith("gdbext")]) <= MOST[command]


@pytest.mark.parametrize(("name", "waits"), [("meta-mm-spin", False), ("known-bug-serve-3.13", True)])
def test_known_bugs_cost_nothing_where_no_thread_waits(name: str, waits: bool) -> None:
    imported = imported_by("-r", str(ROOT / f"tests/recordings/{name}.rec"), "dispatch-diagnose")
    assert any(each.startswith("gdbext.known") for each in imported) is waits


def test_a_look_at_a_live_process_imports_nothing_costly() -> None:
    waiting = [sys.executable, "-c", "print('there', flush=True); input()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        is_suspect = supervision.is_suspect(process.pid)
        imported = imported_by("-p", str(process.pid), "dispatch-diagnose")
        process.kill()
    if is_suspect:
        pytest.skip("a file system that needs a server is mounted here: a child of ours looks, and imports")
    assert "gdbext.torch.measure" in imported
    assert imported & {*COSTLY, *OTHERS} == set()


def test_help_imports_no_reader() -> None:
    imported = {name for name in imported_by("--version") if name.startswith("gdbext.")}
    assert not {name for name in imported if name.startswith(("gdbext.torch", "gdbext.cpython", "gdbext.diagnosis"))}
