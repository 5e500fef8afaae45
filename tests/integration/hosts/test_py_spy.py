"""gdbext-py-spy prints what py-spy prints: of the frame programs, on each CPython of this machine."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from support.programs.harness import ROOT, Outcome, ready, run, started

OURS = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-c", "from gdbext.hosts.py_spy import run; run()"]
THEIRS = [str(Path(sys.executable).parent / "py-spy")]
VERSIONS = ("3.8", "3.11", "3.13")
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


def dumped(tool: list[str], pid: int, *words: str) -> Outcome:
    outcome = run([*tool, "dump", "--pid", str(pid), *words])
    assert outcome.status == 0, outcome
    return outcome


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.pythons(*VERSIONS)
def test_every_frame_is_py_spys(version: str) -> None:
    """Names, files, lines, and its marks of entered loops, of threads in many kinds of Python stack."""
    with started("python-stacks", "plain", python="venv" if version == "3.11" else version) as process:
        texts = [dumped(tool, process.pid, "--json").stdout for tool in (OURS, THEIRS)]
    ours, theirs = ({trace["os_thread_id"]: trace["frames"] for trace in json.loads(text)} for text in texts)
    assert {thread["tid"] for thread in process.truth["stacks"]} <= set(theirs)
    assert {tid: frames for tid, frames in ours.items() if tid in theirs} == theirs


def test_the_text_is_py_spys(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(LOCALS)
    with ready([sys.executable, script]) as process:
        for words in ([], ["--locals"], ["--subprocesses"], ["--full-filenames"], ["--nonblocking"], ["-j", "-l"]):
            ours, theirs = (dumped(tool, process.pid, *words).stdout for tool in (OURS, THEIRS))
            assert ours == theirs, words
        assert re.search(r"libc.*program\.py:", dumped(OURS, process.pid, "--native").stdout, re.DOTALL)


def test_what_is_no_python_is_told() -> None:
    with ready(["sh", "-c", "echo ready; exec sleep 100"]) as process:
        outcome = run([*OURS, "dump", "--pid", str(process.pid)])
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
    with ready([sys.executable, script]) as process:
        for words in (["--locals"], ["--locals", "--json"]):
            text = dumped(OURS, process.pid, *words).stdout
            assert not {"\x7f", "\x1b"} & set(text)
    (worker,) = (each for each in json.loads(text) if each["thread_name"] == "\x7f\x1b[31m")
    values = {each["name"]: each["repr"] for frame in worker["frames"] for each in frame["locals"] or ()}
    assert values["marks"] == '"\x7f\x1b[31m"'
    assert {len(values[name]) for name in ("wide", "nested")} == {128}
