"""Compares reports with what the inferiors wrote down about themselves (inferiors/truth.py)."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]


def check_verdict(wanted: str, report: Document, truth: Document) -> None:
    verdict = report["verdict"]
    expected = {wanted or truth["verdict"]}
    expected |= {truth["child_verdict"]} if "child_verdict" in truth else set()  # where children are examined, too
    if truth.get("busy") and not any(thread["dispatch"] for thread in report["threads"]):
        expected = {"busy", "idle"}  # the look fell between two operators, or into a call of the system
    assert verdict["kind"] in expected, verdict["summary"]
    assert verdict["summary"]
    if "op" in truth:
        assert verdict["op"] in truth.get("ops", [truth["op"]]), verdict["summary"]
    for name in truth.keys() & {"key", "stage"}:
        assert verdict[name] == truth[name], verdict["summary"]
    for name in truth.get("names", ()):
        assert name in verdict["summary"], (name, verdict["summary"])
    check_cycle(verdict, truth)
    check_facts(report, truth)
    check_recursion(report, truth)


def check_cycle(verdict: Document, truth: Document) -> None:
    """The cycle goes through exactly the threads of the truth, and each edge is what that thread said of itself."""
    if "cycle" not in truth:
        assert not verdict["cycle"]
        return
    said = {facts["tid"]: facts for facts in truth["threads"].values()}
    assert {edge["tid"] for edge in verdict["cycle"]} == {truth["threads"][role]["tid"] for role in truth["cycle"]}
    assert set(verdict["threads"]) == {edge["tid"] for edge in verdict["cycle"]}
    for edge in verdict["cycle"]:
        resource = (edge["waits_for"]["kind"], edge["waits_for"]["address"])
        assert said[edge["tid"]].get("waits_for", "") in resource
        assert said[edge["held_by"]].get("holds", "") in resource
        assert f"tid {edge['tid']}" in verdict["summary"] or f"thread {edge['tid']}" in verdict["summary"]
        if "mutex" in truth and edge["waits_for"]["kind"] == "mutex":
            assert edge["waits_for"]["address"] == truth["mutex"]


def check_facts(report: Document, truth: Document) -> None:
    """The thread that crashed, and where; the resources of the scenarios that have one resource."""
    summary, threads = report["verdict"]["summary"], report["threads"]
    waits = {thread["tid"]: thread["wait"] for thread in threads if thread["wait"]}
    if "signal" in truth:
        assert [thread["signal"] for thread in threads if thread["signal"]] == [truth["signal"]]
    if "fault_address" in truth:
        assert truth["fault_address"] in summary
    if truth.get("verdict") == "orphaned-lock":
        owner = {"tid": truth["owner"], "state": "gone"}
        assert [(wait["address"], wait["owner"]) for wait in waits.values()] == [(truth["mutex"], owner)]
    if "condvar" in truth:
        assert truth["condvar"] in [wait["address"] for wait in waits.values() if wait["kind"] == "condvar"]
    if truth.get("wait") == "collective":
        assert waits[truth["pid"]]["kind"] == "collective"
    if "child" in truth:
        assert str(truth["child"]) in summary


def check_recursion(report: Document, truth: Document) -> None:
    """What repeats, how often, and with which keyset; nothing of the kind where nothing does."""
    verdict = report["verdict"]
    if verdict["kind"] != "runaway-recursion":
        assert not [finding for finding in report["findings"] if finding["kind"] == "runaway-recursion"]
        return
    for op in truth["ops"]:
        assert op in verdict["summary"]
    depth = int(verdict["summary"].split(" repeated ")[1].split()[0])
    if truth["depth"]:
        assert abs(depth - truth["depth"]) <= 4
    else:
        assert depth > 1000
    thread = next(thread for thread in report["threads"] if thread["tid"] == verdict["threads"][0])
    bits = {step["keyset"]["bits"] for step in thread["dispatch"] if step["keyset"] and step["op"] == verdict["op"]}
    assert truth["keyset"] in bits


def check_nobody_is_accused_without_need(report: Document, truth: Document) -> None:
    """The healthy threads of every scenario: idle pools are idle, and every owner is a thread or said to be gone."""
    tids = {thread["tid"] for thread in report["threads"]}
    for thread in report["threads"]:
        owner = (thread["wait"] or {}).get("owner")
        if owner is not None:
            assert (owner["tid"] in tids) == (owner["state"] == "alive")
    blamed = {tid for f in report["findings"] if f["kind"] in ("deadlock", "self-deadlock") for tid in f["threads"]}
    loops = {truth["pid"]} if "tasks" in truth else set()
    assert blamed == {truth["threads"][role]["tid"] for role in truth.get("cycle", ())} | loops


def check_waits_of_every_kind(report: Document, truth: Document) -> None:
    """One thread for each kind of wait: kind, address and owner as the program wrote them down."""
    # What Python builds on a lock is named for what it is.
    renamed = {"condition": "condvar", "event": "condvar", "queue": "queue"}
    renamed |= {"once-owner": "sleep", "guard-owner": "sleep"}
    found = {thread["tid"]: thread["wait"] for thread in report["threads"]}
    for role, said in ((role, said) for role, said in truth["threads"].items() if role != "main"):
        wait = found[said["tid"]]
        assert wait is not None, role
        assert wait["kind"] == renamed.get(role, said["kind"]), role
        if "address" in said:
            assert wait["address"] == said["address"], role
        if "owner" in said:
            owner = said["tid"] if said["owner"] == "self" else truth["threads"][said["owner"]]["tid"]
            assert wait["owner"] == {"tid": owner, "state": "alive"}, role
            assert wait["certainty"] == ("inferred" if role in ("once", "guard") else "recorded")
    assert report["verdict"]["kind"] == "self-deadlock"
    assert report["verdict"]["threads"] == [truth["threads"]["self"]["tid"]]


def check_cycle_of_families(report: Document, truth: Document) -> None:
    verdict = report["verdict"]
    assert verdict["kind"] == "deadlock", verdict["summary"]
    assert sorted(edge["waits_for"]["kind"] for edge in verdict["cycle"]) == truth["resources"]
    waits = {edge["tid"]: edge["waits_for"]["kind"] for edge in verdict["cycle"]}
    for role, facts in truth["threads"].items():
        assert waits[facts["tid"]] == facts["waits_for"], role


def check_missing_kernel(report: Document, truth: Document) -> None:
    notes = [finding["summary"] for finding in report["findings"] if finding["kind"] == "note"]
    assert any("no kernel" in text and all(key in text for key in truth["registered"]) for text in notes), notes
