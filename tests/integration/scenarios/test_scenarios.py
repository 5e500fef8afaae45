"""Every scenario: verdict, threads, resources and operator, live and from a core, with and without gdb.

What is expected comes from the truth that each inferior writes down about itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]


@dataclass(frozen=True)
class Scenario:
    """An inferior with its arguments and its Python; ``verdict`` and ``step`` where its truth does not say."""

    name: str
    args: tuple[str, ...] = ()
    python: str = "venv"
    verdict: str = ""
    only: str = ""
    """"live" where a core cannot show it, "core" where the process has ended."""

    def __str__(self) -> str:
        return "-".join((self.name, *self.args, *([self.python] if self.python != "venv" else [])))


SCENARIOS = [
    Scenario("meta-mm"),
    Scenario("meta-mm", ("sleep",)),
    Scenario("meta-mm", ("read",)),
    Scenario("meta-mm", python="debian"),
    Scenario("meta-mm-spin"),
    Scenario("guard-entry"),
    Scenario("guard-entry", python="debian"),
    Scenario("gil-mutex"),
    Scenario("gil-mutex", python="debian"),
    Scenario("mutex-abba"),
    Scenario("mutex-abba", ("3",)),
    Scenario("python-lock-abba"),
    Scenario("python-lock-abba", python="3.8"),
    Scenario("python-lock-abba", ("rlock",), python="3.12"),
    Scenario("python-lock-abba", python="3.13"),
    Scenario("fork-mutex"),
    Scenario("fork-openmp"),
    Scenario("fork-interop"),
    Scenario("fork-autograd"),
    Scenario("boxed-recursion"),
    Scenario("boxed-recursion", ("kernel", "300")),
    Scenario("boxed-recursion", ("pair", "300")),
    Scenario("boxed-recursion", ("fallback", "0"), only="core"),
    Scenario("python-recursion"),
    Scenario("nested-normal"),
    Scenario("functorch"),
    Scenario("kernel-crash", only="core"),
    Scenario("missing-kernel", verdict="blocked"),
    Scenario("gloo-mismatch"),
    Scenario("dataloader"),
    Scenario("condvar-lost"),
    Scenario("idle"),
    Scenario("busy"),
    Scenario("pools"),
]


@pytest.fixture(scope="module")
def reports():
    """What was told of an inferior (by its process id) in one way: one report serves all that is asserted of it."""
    return {}


@pytest.fixture
def document(scenario, look, inferior, reports):
    """The report of dispatch-diagnose, with the truth."""
    if scenario.only and scenario.only != look.kind:
        pytest.skip(f"only as {scenario.only}")
    target = inferior(scenario.name, *scenario.args, python=scenario.python)
    if (target.pid, look) not in reports:
        reports[target.pid, look] = look(target, "dispatch-diagnose")
    return reports[target.pid, look], target.truth


scenarios = pytest.mark.parametrize("scenario", SCENARIOS, ids=str)


@scenarios
def test_verdict(scenario, document):
    report, truth = document
    verdict = report["verdict"]
    expected = scenario.verdict or truth["verdict"]
    if truth.get("busy") and not any(thread["dispatch"] for thread in report["threads"]):
        expected = "idle"  # the look fell between two operators, where nothing is inside the dispatcher
    assert verdict["kind"] == expected, verdict["summary"]
    assert verdict["summary"]
    if "op" in truth:
        assert verdict["op"] in truth.get("ops", [truth["op"]]), verdict["summary"]
    if "key" in truth:
        assert verdict["key"] == truth["key"], verdict["summary"]
    if "stage" in truth:
        assert verdict["stage"] == truth["stage"]
    check_cycle(verdict, truth)
    check_signal(report, truth)
    check_waits(report, truth)
    check_recursion(report, truth)


def check_cycle(verdict, truth):
    """The cycle goes through exactly the threads of the truth, and each edge is what that thread said of itself."""
    if "cycle" not in truth:
        assert not verdict["cycle"]
        return
    said = {facts["tid"]: facts for facts in truth["threads"].values()}
    assert {edge["tid"] for edge in verdict["cycle"]} == {truth["threads"][role]["tid"] for role in truth["cycle"]}
    assert set(verdict["threads"]) == {edge["tid"] for edge in verdict["cycle"]}
    for edge in verdict["cycle"]:
        wanted = said[edge["tid"]].get("waits_for", "")
        assert wanted in (edge["waits_for"]["kind"], edge["waits_for"]["address"])
        held = said[edge["held_by"]].get("holds", "")
        assert held in (edge["waits_for"]["kind"], edge["waits_for"]["address"])
        assert f"tid {edge['tid']}" in verdict["summary"] or f"thread {edge['tid']}" in verdict["summary"]
        if "mutex" in truth and edge["waits_for"]["kind"] == "mutex":
            assert edge["waits_for"]["address"] == truth["mutex"]


def check_signal(report, truth):
    if "signal" in truth:
        crashed = [thread for thread in report["threads"] if thread["signal"]]
        assert [thread["signal"] for thread in crashed] == [truth["signal"]]
    if "fault_address" in truth:
        assert truth["fault_address"] in report["verdict"]["summary"]


def check_waits(report, truth):
    """The resources of the scenarios that have one resource."""
    waits = [thread["wait"] for thread in report["threads"] if thread["wait"]]
    if truth["verdict" if "verdict" in truth else "op"] == "orphaned-lock":
        assert [(w["address"], w["owner"]) for w in waits] == [
            (truth["mutex"], {"tid": truth["owner"], "state": "gone"})
        ]
    if "condvar" in truth:
        assert truth["condvar"] in [wait["address"] for wait in waits if wait["kind"] == "condvar"]
    if truth.get("wait") == "collective":
        kinds = {thread["tid"]: (thread["wait"] or {}).get("kind") for thread in report["threads"]}
        assert kinds[truth["pid"]] == "collective"
    if "child" in truth:
        assert str(truth["child"]) in report["verdict"]["summary"]


def check_recursion(report, truth):
    verdict = report["verdict"]
    if verdict["kind"] != "runaway-recursion":
        assert not [finding for finding in report["findings"] if finding["kind"] == "runaway-recursion"]
        return
    for op in truth["ops"]:
        assert op in verdict["summary"]
    depth = int(verdict["summary"].split(" repeated ")[1].split()[0])
    if truth["depth"]:
        assert depth == pytest.approx(truth["depth"], abs=4)
    else:
        assert depth > 1000
    thread = next(thread for thread in report["threads"] if thread["tid"] == verdict["threads"][0])
    bits = {step["keyset"]["bits"] for step in thread["dispatch"] if step["keyset"] and step["op"] == verdict["op"]}
    assert truth["keyset"] in bits


@scenarios
def test_nobody_is_accused_without_need(document):
    """The healthy threads of every scenario: idle pools are idle, and every owner is a thread or said to be gone."""
    report, truth = document
    tids = {thread["tid"] for thread in report["threads"]}
    for thread in report["threads"]:
        owner = (thread["wait"] or {}).get("owner")
        if owner is not None:
            assert (owner["tid"] in tids) == (owner["state"] == "alive")
    blamed = {tid for f in report["findings"] if f["kind"] in ("deadlock", "self-deadlock") for tid in f["threads"]}
    assert blamed == {truth["threads"][role]["tid"] for role in truth.get("cycle", ())}


def test_waits_of_every_kind(look, inferior):
    """One thread for each kind of wait: kind, address and owner as the program wrote them down."""
    target = inferior("waits")
    report = look(target, "all-threads")
    # What Python builds on a lock is named for what it is.
    renamed = {"condition": "condvar", "event": "condvar", "queue": "queue"}
    renamed.update({"once-owner": "sleep", "guard-owner": "sleep"})
    found = {thread["tid"]: thread["wait"] for thread in report["threads"]}
    for role, said in target.truth["threads"].items():
        if role == "main":
            continue
        wait = found[said["tid"]]
        assert wait is not None, role
        assert wait["kind"] == renamed.get(role, said["kind"]), role
        if "address" in said:
            assert wait["address"] == said["address"], role
        if "owner" in said:
            owner = said["tid"] if said["owner"] == "self" else target.tid(said["owner"])
            assert wait["owner"] == {"tid": owner, "state": "alive"}, role
            assert wait["certainty"] == ("inferred" if role in ("once", "guard") else "recorded")
    assert report["verdict"]["kind"] == "self-deadlock"
    assert report["verdict"]["threads"] == [target.tid("self")]


@pytest.mark.parametrize("kind", ["join", "openmp", "stream", "loader"])
def test_the_gil_and_something_else(kind, look, inferior):
    """A cycle of the GIL with a join, an OpenMP team, a stdio stream or the dynamic loader's lock."""
    target = inferior("families", kind)
    verdict = look(target, "dispatch-diagnose")["verdict"]
    assert verdict["kind"] == "deadlock", verdict["summary"]
    assert sorted(edge["waits_for"]["kind"] for edge in verdict["cycle"]) == target.truth["resources"]
    waits = {edge["tid"]: edge["waits_for"]["kind"] for edge in verdict["cycle"]}
    assert {role: waits[target.tid(role)] for role in target.truth["threads"]} == {
        role: facts["waits_for"] for role, facts in target.truth["threads"].items()
    }


def test_missing_kernel_names_what_is_registered(look, inferior):
    target = inferior("missing-kernel")
    report = look(target, "dispatch-diagnose")
    notes = [finding["summary"] for finding in report["findings"] if finding["kind"] == "note"]
    assert any("no kernel" in text and all(key in text for key in target.truth["registered"]) for text in notes), notes
