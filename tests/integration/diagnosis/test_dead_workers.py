"""A worker process was killed, and a process that it had started holds its pipes: its death goes unnoticed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from support.programs.harness import Inferior, Start, run

POOLS = ("executor", "executor_thread", "pool", "joblib", "joblib_two")
PIPES = ("pipe", "duplex", "subprocess")
DISPATCH = Path(__file__).parents[3] / "scripts" / "dispatch"
needs_joblib = pytest.mark.skipif(not importlib.util.find_spec("joblib"), reason="joblib is not installed")


def ways(*names: str) -> list[Any]:
    return [pytest.param(name, marks=needs_joblib if name.startswith("joblib") else ()) for name in names]


def verdict(target: Inferior) -> dict[str, Any]:
    answer: dict[str, Any] = target.dispatch("dispatch-diagnose", debugger="none").document["verdict"]
    return answer


@pytest.mark.parametrize("way", ways(*POOLS, *PIPES))
def test_the_dead_worker_and_its_orphan_are_named(inferior: Start, way: str) -> None:
    target = inferior("dead_workers", way, "killed")
    found = verdict(target)
    assert found["kind"] == "missing-workers"
    assert target.tid("main") in found["threads"]
    named = "its worker {} (" if way in POOLS else "its child process {} (python, "
    assert named.format(target.truth["worker"]) in found["summary"]
    assert "killed by SIGKILL) is dead" in found["summary"]
    assert f" {target.truth['orphan']} (python), its orphan, holds its pipe open." in found["summary"]


@pytest.mark.parametrize("way", ways(*POOLS, *PIPES))
def test_a_living_worker_is_awaited(inferior: Start, way: str) -> None:
    target = inferior("dead_workers", way, "alive")
    found = verdict(target)
    assert found["kind"] in ("waiting-external", "idle")
    assert " dead" not in found["summary"]


@pytest.mark.parametrize("way", PIPES)
def test_a_worker_that_was_left_behind_on_purpose_is_no_orphan(inferior: Start, way: str) -> None:
    found = verdict(inferior("dead_workers", way, "daemon"))
    assert found["kind"] == "waiting-external"
    assert " dead" not in found["summary"]


def test_a_recording_says_the_same(inferior: Start, tmp_path: Path) -> None:
    target = inferior("dead_workers", "executor", "killed")
    recording = tmp_path / "dead.rec"
    live = target.dispatch("--record", str(recording), "dispatch-diagnose", debugger="none").document["verdict"]
    replayed = run([DISPATCH, "--json", "-r", str(recording), "dispatch-diagnose"]).document["verdict"]
    assert (replayed["kind"], replayed["summary"]) == ("missing-workers", live["summary"])


@pytest.mark.torch
def test_a_compile_worker_of_torch(inferior: Start) -> None:
    """The thread that reads the answers is not the one that waits for them."""
    target = inferior("dead_workers", "compile_worker", "killed")
    found = verdict(target)
    assert found["kind"] == "missing-workers"
    assert found["summary"].startswith("InductorSubproc (tid ")
    assert f"its child process {target.truth['worker']} (python, killed by SIGKILL) is dead" in found["summary"]
    assert f"; MainThread (tid {target.tid('main')}) waits for " in found["summary"]
