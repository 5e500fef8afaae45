"""Hangs and healthy waits beyond the list of scenarios: the verdict, the threads, and nobody blamed without proof."""

from __future__ import annotations

import os
import signal

import pytest

from support.installed import pythons
from support.programs import procfs
from support.programs.harness import started, wait_until
from support.recorded.scenario_checks import check_cycle_of_families

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

CYCLES = ("priority-inheritance", "call-once-cross", "static-and-mutex", "loader-callback")


def waits_of(report):
    return {thread["tid"]: thread["wait"] for thread in report["threads"]}


@pytest.mark.parametrize("scenario", CYCLES)
def test_native_cycles(scenario, look, inferior):
    target = inferior("more-native", scenario)
    verdict = look(target, "dispatch-diagnose")["verdict"]
    assert verdict["kind"] == "deadlock", verdict["summary"]
    waited_for = {edge["tid"]: edge["waits_for"]["kind"] for edge in verdict["cycle"]}
    assert waited_for == {target.tid(role): target.truth["threads"][role]["waits_for"] for role in ("0", "1")}


@pytest.mark.parametrize("python", ["3.14", "3.15"])
@pytest.mark.parametrize("kind", ["join", "stream", "loader"])
def test_deadlocks_through_the_gil_of_newer_pythons(kind, python):
    if python not in pythons.newer():
        pytest.skip(f"no CPython {python} here")
    with started("families", kind, python=python) as target:
        check_cycle_of_families(target.dispatch("dispatch-diagnose", debugger="none").document, target.truth)


@pytest.mark.parametrize("scenario", ["once-again"])
def test_a_thread_that_waits_for_itself(scenario, plain_look, inferior):
    target = inferior("more-native", scenario)
    verdict = plain_look(target, "dispatch-diagnose")["verdict"]
    assert (verdict["kind"], verdict["threads"]) == ("self-deadlock", [target.tid("0")]), verdict["summary"]


@pytest.mark.parametrize("scenario", ["static-late"])
def test_a_thread_before_the_static_does_not_initialise_it(scenario, plain_look, inferior):
    target = inferior("more-native", scenario)
    wait = waits_of(plain_look(target, "all-threads"))[target.tid("0")]
    assert (wait["kind"], wait["certainty"]) == ("static-init", "inferred")
    assert wait["owner"] == {"tid": target.tid("1"), "state": "alive"}


PYTHONS = [
    ("import-lock", "venv", "deadlock"),
    ("import-lock", "3.8", "deadlock"),
    ("import-lock", "3.12", "deadlock"),
    ("job-and-lock", "venv", "deadlock"),
    ("job-and-lock", "3.9", "deadlock"),
    ("gil-asleep", "debian", "blocked"),
    ("queue-forever", "venv", "blocked"),
    ("full-pool", "3.13", "self-deadlock"),
    ("other-process", "venv", "waiting-external"),
    ("full-socket", "3.9", "waiting-external"),
    ("event", "debian", "idle"),
    ("pool-at-rest", "3.10", "idle"),
]


@pytest.mark.parametrize(("scenario", "python", "kind"), PYTHONS)
def test_python_waits(scenario, python, kind, plain_look, inferior):
    target = inferior("more-python", scenario, python=python)
    report = plain_look(target, "dispatch-diagnose")
    verdict = report["verdict"]
    assert verdict["kind"] == kind, verdict["summary"]
    if kind == "deadlock":
        assert set(verdict["threads"]) == {target.tid("main"), target.tid("other")}
    if scenario == "gil-asleep":
        assert (target.tid("other"), target.tid("main")) == tuple(verdict["threads"])
    if kind == "idle":
        assert not report["findings"]


@pytest.mark.parametrize(("scenario", "python"), [("given-up", "venv"), ("given-up", "3.8"), ("released", "3.12")])
def test_who_let_go_of_a_lock_does_not_own_it(scenario, python, plain_look, inferior):
    target = inferior("more-python", scenario, python=python)
    report = plain_look(target, "dispatch-diagnose")
    wait = waits_of(report)[target.tid("main")]
    assert (wait["kind"], wait["owner"], wait["certainty"]) == ("python-lock", None, "unknown")
    assert report["verdict"]["kind"] not in ("deadlock", "self-deadlock")


@pytest.mark.parametrize("debugger", ["gdb", "none"])
def test_a_stopped_process_says_so(debugger):
    with started("more-python", "queue-forever") as target:
        os.kill(target.pid, signal.SIGSTOP)
        wait_until(lambda: procfs.state(target.pid, target.pid) == "T", "it is stopped")
        verdict = target.dispatch("dispatch-diagnose", debugger=debugger).document["verdict"]
        assert verdict["kind"] in ("stopped", "blocked")
        document = target.dispatch("dispatch-diagnose", debugger=debugger).document
        assert any("kill -CONT" in finding["summary"] for finding in document["findings"]), document["findings"]


@pytest.mark.parametrize("debugger", ["gdb", "none"])
def test_a_child_that_waits_for_its_parent(debugger, inferior):
    target = inferior("more-python", "unread-child")
    verdict = target.dispatch("dispatch-diagnose", debugger=debugger).document["verdict"]
    assert verdict["kind"] == "waiting-external"
    assert f"child process {target.truth['child']}" in verdict["summary"]
    assert "waits to write to pipe:" in verdict["summary"]
    assert any("communicate()" in line for line in verdict["advice"])
