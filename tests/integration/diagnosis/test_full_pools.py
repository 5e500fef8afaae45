"""Tasks named by the program's own code and folded by it, and pools whose threads are all taken."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.installed import pythons
from support.programs.harness import Inferior, Start, run, started

OLDEST, NEWEST = pythons.SUPPORTED[0], pythons.SUPPORTED[-1]
DISPATCH = Path(__file__).parents[3] / "scripts" / "dispatch"
DEADLOCKED = {"anyio-itself", "executor-of-loop", "grpc-itself"}
PACKAGES = {"anyio-taken": "anyio", "anyio-itself": "anyio", "anyio-limited": "anyio", "grpc-itself": "grpc"}
PROGRAMS = [
    *(("tasks-alike", python) for python in (OLDEST, NEWEST)),
    *(("task-failed", python) for python in pythons.SUPPORTED),
    *((name, python) for name in ("executor-full", "executor-of-loop", "executor-busy") for python in (OLDEST, NEWEST)),
    *((name, "venv") for name in PACKAGES),
]


def check(target: Inferior, scenario: str) -> None:
    verdict = target.dispatch("dispatch-diagnose", debugger="none").document["verdict"]
    said = verdict["summary"]
    assert (verdict["kind"] == "deadlock") == (scenario in DEADLOCKED), said
    assert [words for words in target.truth["says"] if words not in said] == [], said
    assert [words for words in target.truth["never"] if words in said] == [], said


@pytest.mark.parametrize(("scenario", "python"), PROGRAMS)
def test_what_tasks_and_pools_wait_for(scenario: str, python: str) -> None:
    if scenario in PACKAGES and not importlib.util.find_spec(PACKAGES[scenario]):
        pytest.skip(f"{PACKAGES[scenario]} is not installed")
    with started("full-pools", scenario, python=python) as target:
        check(target, scenario)


def test_a_recording_says_the_same(inferior: Start, tmp_path: Path) -> None:
    target, recording = inferior("full-pools", "executor-of-loop"), tmp_path / "pool.rec"
    live = target.dispatch("--record", str(recording), "dispatch-diagnose", debugger="none").document
    replayed = run([DISPATCH, "--json", "-r", str(recording), "dispatch-diagnose"]).document
    assert replayed["verdict"]["summary"] == live["verdict"]["summary"]
    assert replayed["verdict"]["kind"] == "deadlock"


def test_equal_tasks_are_one_entry(inferior: Start) -> None:
    target = inferior("full-pools", "tasks-alike")
    text = run([DISPATCH, "-p", str(target.pid), "all-threads", "--tasks"]).stdout
    entries = [line for line in text.splitlines() if line.startswith("      ") and line[6:7].strip()]
    assert [entry.split()[:3] for entry in entries[:2]] == [["20", "×", "fetch"], ["3", "×", "store"]], text
