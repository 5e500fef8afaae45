"""The pytest plugin: tests that hang are explained with their children, may be failed, and leave no process behind."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

from support.programs import procfs
from support.programs.harness import ROOT, Outcome, run, wait_until

HANGING = """
import os, subprocess, sys, threading

PAUSE = "import signal; signal.pause()"
threading.main_thread().name = "\\x1b[31mmain\\n"

def stand():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def test_a_forked_child():
    child = os.fork() or stand()
    os.waitpid(child, 0)

def test_a_program():
    subprocess.run([sys.executable, "-c", PAUSE])

def test_a_thread():
    thread = threading.Thread(target=stand, daemon=True)
    thread.start()
    thread.join()

def test_quick():
    pass
"""
LONG = f"test_a_program_{'語' * 120}"
DEADLY = """
import ctypes, os, signal

def test_the_gil():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

def test_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_run(tmp_path: Path, source: str, *words: str) -> Outcome:
    (tmp_path / "test_hanging.py").write_text(source)
    plugin = ["-p", "gdbext.hosts.pytest_plugin", "-p", "no:cacheprovider", "--gdbext-kill", "--junitxml", "found.xml"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *words, "test_hanging.py"]
    return run(["env", f"PYTHONPATH={ROOT}", "PYTEST_ADDOPTS=", *command], cwd=tmp_path)


test_run.__test__ = False  # type: ignore[attr-defined]


def test_hanging_tests_are_explained_and_failed(tmp_path: Path) -> None:
    outcome = test_run(tmp_path, HANGING.replace("test_a_program", LONG), "--gdbext-threshold", "1")
    assert "3 failed, 1 passed" in outcome.stdout, outcome
    assert outcome.stdout.count("gdbext: ran longer than --gdbext-threshold") == 3
    cases = ElementTree.parse(tmp_path / "found.xml").iter("testcase")
    found = {
        case.get("name"): {each.get("name"): each.get("value", "") for each in case.iter("property")} for case in cases
    }
    thread, forked = (found[name]["gdbext-verdict"] for name in ("test_a_thread", "test_a_forked_child"))
    assert "seems to hold itself" in thread
    assert re.search("waits for child process.*seems to hold itself", forked, re.DOTALL), forked
    verdict, _, full = outcome.stderr.partition("test_a_thread, in full:")
    assert "seems to hold itself" in verdict.rpartition("test_a_thread has run for")[2]  # at once, before the recording
    assert "test_hanging.py" in full  # past pytest's own capturing
    assert found["test_quick"] == {}
    start = Path(found[LONG]["gdbext-files"].removesuffix("-*"))
    recordings = sorted(start.parent.glob(f"{start.name}-*.rec"))
    assert len(recordings) == 2  # the test's process and the program
    summaries = [json.loads(file.read_text())["summary"] for file in start.parent.glob("*.hang.json")]
    assert any("\\x1b[31mmain\\x0a" in each for each in summaries), summaries
    left = {json.loads(file.read_text())["target"]["pid"] for file in start.parent.glob("*[0-9].json")}
    wait_until(lambda: not any(map(procfs.alive, left)), "all of them have gone")


def test_a_process_that_cannot_be_failed_is_ended(tmp_path: Path) -> None:
    """The GIL is held: pytest-xdist tells why its worker is gone. A stopped one goes on, and fails."""
    outcome = test_run(tmp_path, DEADLY, "--gdbext-threshold", "1", "-n", "2")
    assert "2 failed" in outcome.stdout, outcome
    assert outcome.stdout.count("gdbext: ran longer than --gdbext-threshold") == 2
    assert "crashed while running" in (tmp_path / "found.xml").read_text()
    assert all(word in outcome.stdout for word in ("SIGSTOP", "mutex")), outcome
    kept = {json.loads(file.read_text())["test"] for file in (tmp_path / "gdbext-hangs").glob("*.hang.json")}
    assert kept == {"test_hanging.py::test_the_gil", "test_hanging.py::test_stopped"}


def test_without_a_threshold_nothing_is_registered(tmp_path: Path) -> None:
    source = "def test_x(request): assert request.config.pluginmanager.get_plugin('gdbext-hangs') is None\n"
    outcome = test_run(tmp_path, source)
    assert outcome.status == 0, outcome
    assert not (tmp_path / "gdbext-hangs").exists()
