"""A server only waits; what is wrong in the processes below it is its verdict."""

from __future__ import annotations

from typing import Any

import pytest

from support.programs.harness import Inferior, Start


def verdict(target: Inferior) -> dict[str, Any]:
    answer: dict[str, Any] = target.dispatch("dispatch-diagnose", debugger="none").document["verdict"]
    return answer


@pytest.mark.parametrize("member", ["engine", "worker0", "worker1"])
@pytest.mark.parametrize("fault", ["stopped", "deadlock"])
def test_the_stuck_process_below_is_the_verdict(inferior: Start, fault: str, member: str) -> None:
    target = inferior("server_trees", fault, member)
    found = verdict(target)
    pid = target.truth["pids"][member]
    assert found["kind"] == fault
    relation = "child" if member == "engine" else "grandchild"
    assert found["summary"].startswith(f"In its {relation} process {pid}: ")
    assert (f"kill -CONT {pid}." in found["summary"]) == (fault == "stopped")
    assert any(str(pid) in step for step in found["advice"])


@pytest.mark.parametrize("member", ["engine", "worker1"])
def test_a_killed_process_below_is_named_first(inferior: Start, member: str) -> None:
    target = inferior("server_trees", "killed", member)
    found = verdict(target)
    assert found["kind"] == "waiting-external"
    pid = target.truth["pids"][member]
    assert found["summary"].startswith(f"Below it, process {pid} (python, killed by SIGKILL, now a zombie) is dead.")


def test_a_healthy_tree_only_waits(inferior: Start) -> None:
    target = inferior("server_trees", "none", "engine")
    for _ in range(10):
        found = verdict(target)
        assert found["kind"] == "waiting-external", found["summary"]
        assert found["summary"].startswith(f"MainThread (tid {target.tid('main')}) waits in epoll_wait ")
