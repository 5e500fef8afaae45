"""gdbext-py-spy prints what py-spy prints: of the frame programs, on each CPython of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.installed import pythons
from support.programs.harness import INFERIORS, ROOT, Outcome, run

OURS = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-c", "from gdbext.hosts.py_spy import run; run()"]
THEIRS = [str(Path(sys.executable).parent / "py-spy")]
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")
LOCALS = """
import subprocess, sys, threading
def work(number, text="hello \\"you\\"", *rest, flag=True):
    here, pair, nested = [1, 2.5, None], (1, "b"), {"a": {"b": [1]}}
    threading.Event().wait()
class A:
    def method(self):
        (lambda: work(3))()
threading.Thread(target=A().method, name="worker", daemon=True).start()
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"], stdout=sys.stdout)
else:
    print("ready", flush=True)
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""


@pytest.fixture(params=VERSIONS, ids=str)
def stacks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """A process with threads in every kind of Python stack."""
    python = sys.executable if request.param == "3.11" else pythons.need(request.param)
    words = [python, str(INFERIORS / "python_stacks.py"), str(tmp_path / "truth.json"), "plain"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def dumped(tool: list[str], pid: int, *words: str) -> Outcome:
    outcome = run([*tool, "dump", "--pid", str(pid), *words])
    assert outcome.status == 0, outcome
    return outcome


def threads(tool: list[str], pid: int) -> dict[int, list[tuple[Any, ...]]]:
    found = {}
    for trace in json.loads(dumped(tool, pid, "--json").stdout):
        frames = trace["frames"]
        found[trace["os_thread_id"]] = [
            (each["name"], each["filename"], each["short_filename"], each["line"]) for each in frames
        ]
    return found


@pytest.mark.pythons(*VERSIONS)
def test_every_frame_is_py_spys(stacks: int) -> None:
    ours, theirs = threads(OURS, stacks), threads(THEIRS, stacks)
    assert len(theirs) > 10
    assert {tid: frames for tid, frames in ours.items() if tid in theirs} == theirs


def test_the_text_is_py_spys(tmp_path: Path) -> None:
    """Threads, arguments, variables, children: letter by letter."""
    script = tmp_path / "program.py"
    script.write_text(LOCALS)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            for words in ([], ["--locals"], ["--subprocesses"], ["--full-filenames"], ["--nonblocking"], ["-j", "-l"]):
                ours, theirs = (dumped(tool, process.pid, *words).stdout for tool in (OURS, THEIRS))
                assert ours == theirs, words
            native = dumped(OURS, process.pid, "--native").stdout
            assert "libc" in native
            assert "program.py:" in native
        finally:
            subprocess.run(["pkill", "-P", str(process.pid)], check=False)
            process.kill()


def test_what_is_no_python_is_told() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        outcome = run([*OURS, "dump", "--pid", str(process.pid)])
        process.kill()
    assert outcome.status == 1
    assert outcome.stderr.startswith("Error: ")
