"""What is said of small programs that are like those of others: what runs, what is blocked, who waits for whom."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from support.installed import pythons
from support.programs import procfs
from support.programs.harness import Inferior, Start, started, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

OLDEST, NEWEST = pythons.SUPPORTED[0], pythons.SUPPORTED[-1]


def report(target: Inferior, *words: str) -> Any:
    return target.dispatch(*(words or ("dispatch-diagnose",)), debugger="none").document


def verdict_of(target: Inferior) -> Any:
    return report(target)["verdict"]


def waits_of(document: Any) -> dict[int, Any]:
    return {thread["tid"]: thread["wait"] for thread in document["threads"]}


@pytest.mark.parametrize("python", ["venv", OLDEST, NEWEST])
def test_python_that_runs_is_busy_with_its_line(inferior: Start, python: str) -> None:
    target = inferior("owed", "runs-python", python=python)
    verdict = verdict_of(target)
    assert verdict["kind"] in ("busy", "slow", "starved"), verdict["summary"]  # so are others of this machine
    line = target.truth["line"]
    assert any(f"owed.py:{line + more} (count)" in verdict["summary"] for more in (1, 2, 3)), verdict["summary"]
    assert "dispatcher" not in verdict["summary"], "there is no torch"
    assert target.tid("counter") in verdict["threads"]


@pytest.mark.parametrize("python", pythons.SUPPORTED)
def test_a_lock_taken_twice(inferior: Start, python: str) -> None:
    target = inferior("owed", "lock-twice", python=python)
    document = report(target)
    verdict, managed = document["verdict"], target.tid("managed")
    assert (waits_of(document)[managed]["owner"] or {}).get("tid") == managed, "a suspended generator has it"
    assert (verdict["kind"], verdict["threads"]) == ("self-deadlock", [target.tid("main")]), verdict["summary"]
    assert "seems to hold itself" in verdict["summary"], "no lock of this kind records its owner"


@pytest.mark.parametrize("python", [OLDEST, NEWEST])
def test_a_lock_that_another_may_have(inferior: Start, python: str) -> None:
    target = inferior("owed", "lock-handed", python=python)
    document = report(target)
    wait = waits_of(document)[target.tid("main")]
    assert (wait["kind"], wait["owner"], wait["certainty"]) == ("python-lock", None, "unknown")
    assert document["verdict"]["kind"] not in ("deadlock", "self-deadlock")
    assert "itself" not in document["verdict"]["summary"]


def test_threads_of_an_rpc_agent_are_idle(inferior: Start) -> None:
    target = inferior("owed", "rpc-idle")
    others = [each for each in report(target, "all-threads")["threads"] if each["tid"] != target.tid("main")]
    names = {each["wait"]["name"] for each in others if each["state"] == "idle"}
    assert {"tensorpipe", "RPC", "c10 thread pool"} <= names, names
    assert all(each["state"] == "idle" for each in others), [each for each in others if each["state"] != "idle"]


def test_the_cause_in_a_child_that_is_waited_for(inferior: Start) -> None:
    target = inferior("owed", "stuck-child")
    document, child = report(target), target.truth["child"]
    assert document["verdict"]["kind"] == "self-deadlock"
    assert document["verdict"]["summary"].startswith(f"In its child process {child}: ")
    assert [(each["pid"], each["verdict"]) for each in document["children"]["children"]] == [(child, "self-deadlock")]
    unstopped = target.dispatch("--no-stop", "dispatch-diagnose", debugger="none")
    assert "In process" not in unstopped.stdout, "who is not to be stopped brings no children along"


def test_a_rank_that_only_os_environ_knows(inferior: Start) -> None:
    identity = report(inferior("owed", "rank-by-itself"))["collectives"]["identity"]
    said = {name: identity[name] for name in ("rank", "size", "local_rank", "job")}
    assert said == {"rank": 3, "size": 4, "local_rank": 1, "job": "127.0.0.1:1"}


@pytest.mark.parametrize("python", [OLDEST, "3.11", "3.12", "3.13", NEWEST])
def test_the_line_where_the_holder_in_a_cycle_took_the_lock(inferior: Start, python: str) -> None:
    """Known where it stands in the very block of the with; before 3.11 also in a try inside of it, and by a call."""
    target = inferior("owed", "crossed-withs", python=python)
    document = report(target)
    assert document["verdict"]["kind"] == "deadlock", document["verdict"]["summary"]
    taken = {tid: wait.get("taken_at", "") for tid, wait in waits_of(document).items() if wait}
    lines = {
        role: taken[target.tid(role)].rpartition("owed.py:")[2].partition(" ")[0] for role in ("one", "two", "four")
    }
    in_try = str(target.truth["in_try"]) if python == OLDEST else ""
    assert lines == {"one": in_try, "two": str(target.truth["line"]), "four": str(target.truth["called"])}


def test_greenlets_that_hold_what_the_other_wants(inferior: Start) -> None:
    """A lock of gevent keeps its owner, a semaphore is on the stack of who is inside of it. Those of eventlet would be
    a cycle, too, if one of them did not give up."""
    target = inferior("greenlets")
    tasks = [task for thread in report(target, "all-threads", "--tasks")["threads"] for task in thread.get("tasks", ())]
    told = {task["frames"][-1]["function"].rpartition(".")[2]: task for task in tasks}
    texts = {name: task["awaits"] for name, task in told.items()}
    needs = {"credit": "debit", "debit": "credit", "patient": "leaves", "leaves": "patient"}
    assert [name for name, other in needs.items() if f".{other} (" not in texts[name]] == []
    assert texts["credit"].endswith(" seems to hold")
    assert texts["debit"].endswith(") holds")
    assert {name for name, task in told.items() if task["timed"]} >= {"leaves"}
    assert not any(told[name]["timed"] for name in ("credit", "debit", "patient"))
    verdict = verdict_of(target)
    assert (verdict["kind"], verdict["threads"]) == ("deadlock", [target.tid("main")]), verdict["summary"]


def test_a_loop_that_sleeps_again_and_again_polls() -> None:
    with started("owed", "refused-before") as target:
        assert target.dispatch("dispatch-diagnose", debugger="none", json=False).stdout.startswith("polls: ")


def test_a_stopped_process_says_so() -> None:
    with started("owed", "lock-handed") as target:
        os.kill(target.pid, signal.SIGSTOP)
        wait_until(lambda: procfs.state(target.pid, target.pid) == "T", "it is stopped")
        findings = report(target)["findings"]
        assert any("kill -CONT" in finding["summary"] for finding in findings), findings


NATIVE_LOCKS = [("priority-inheritance", "deadlock", ("0", "1")), ("once-again", "self-deadlock", ("0",))]


@pytest.mark.parametrize(("kind", "expected", "roles"), NATIVE_LOCKS)
def test_native_locks(inferior: Start, kind: str, expected: str, roles: tuple[str, ...]) -> None:
    target = inferior("more-native", kind)
    verdict = verdict_of(target)
    assert verdict["kind"] == expected, verdict["summary"]
    waited_for = {edge["tid"]: edge["waits_for"]["kind"] for edge in verdict["cycle"]}
    assert waited_for == {target.tid(role): target.truth["threads"][role]["waits_for"] for role in roles}


def test_a_thread_before_the_static_does_not_initialise_it(inferior: Start) -> None:
    target = inferior("more-native", "static-late")
    wait = waits_of(report(target, "all-threads"))[target.tid("0")]
    assert (wait["kind"], wait["certainty"]) == ("static-init", "inferred")
    assert wait["owner"] == {"tid": target.tid("1"), "state": "alive"}
