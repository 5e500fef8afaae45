"""gdbext-py-spy prints what py-spy prints: of the frame programs, on each CPython of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def process(version: str, *words: str) -> Iterator[int]:
    """A process with threads in many kinds of Python stack."""
    python = sys.executable if version == "3.11" else pythons.need(version)
    words = (str(python), str(INFERIORS / words[0]), *words[1:])
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline()
        yield started.pid
        started.kill()


def dumped(tool: list[str], pid: int, *words: str) -> Outcome:
    outcome = run([*tool, "dump", "--pid", str(pid), *words])
    assert outcome.status == 0, outcome
    return outcome


def threads(tool: list[str], pid: int) -> dict[int, list[tuple[Any, ...]]]:
    found = {}
    for trace in json.loads(dumped(tool, pid, "--json").stdout):
        frames = trace["frames"]
        found[trace["os_thread_id"]] = [
            tuple(each[key] for key in ("name", "filename", "short_filename", "line", "is_entry", "is_shim_entry"))
            for each in frames
        ]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.pythons(*VERSIONS)
def test_every_frame_is_py_spys(version: str, tmp_path: Path) -> None:
    """Names, files, lines, and its marks of entered loops."""
    with process(version, "python_stacks.py", str(tmp_path / "truth.json"), "plain") as pid:
        ours, theirs = threads(OURS, pid), threads(THEIRS, pid)
    assert len(theirs) > 10
    assert {tid: frames for tid, frames in ours.items() if tid in theirs} == theirs


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.pythons(*VERSIONS)
def test_the_text_of_every_frame_is_py_spys(version: str) -> None:
    with process(version, "python_frames.py") as pid:
        ours, theirs = (dumped(tool, pid).stdout for tool in (OURS, THEIRS))
        assert ours == theirs
        assert ours.count("Thread ") > 10
        if version == "3.11":
            assert threads(OURS, pid) == threads(THEIRS, pid)


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


HOSTILE = """
import threading
def work(wide, marks, nested):
    threading.Event().wait()
wide = [[["v" * 1000] * 128] * 128] * 128
nested = {number: {other: dict.fromkeys(map(str, range(128)), wide) for other in range(128)} for number in range(128)}
threading.Thread(target=work, args=(wide, "\\x7f\\x1b[31m", nested), name="\\x7f\\x1b[31m", daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_containers_that_would_exhaust_it_and_controls(tmp_path: Path) -> None:
    """A value is cut after 128 characters: what lies behind is not read. JSON stays JSON, and no control is written."""
    script = tmp_path / "program.py"
    script.write_text(HOSTILE)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            before = sum(os.times()[2:4])
            for words in (["--locals"], ["--locals", "--json"]):
                text = dumped(OURS, process.pid, *words).stdout
                assert not {"\x7f", "\x1b"} & set(text)
            assert sum(os.times()[2:4]) - before < 5
        finally:
            process.kill()
    (worker,) = (each for each in json.loads(text) if each["thread_name"] == "\x7f\x1b[31m")
    values = {each["name"]: each["repr"] for frame in worker["frames"] for each in frame["locals"] or ()}
    assert values["marks"] == '"\x7f\x1b[31m"'
    assert {len(values[name]) for name in ("wide", "nested")} == {128}
