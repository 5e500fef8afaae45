"""dispatch-autograd against what autograd says of itself: a model of 500 nodes, 20 positions in its backward passes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.programs.harness import Inferior, Start
from support.programs.ways import Look
from support.truth.autograd_truth import backwards

pytestmark = [pytest.mark.torch, pytest.mark.gdb]
look = Look("live", "none")


@pytest.fixture
def process(inferior: Start) -> Inferior:
    return inferior("autograd")


def test_twenty_positions(process: Inferior, plain_look: Look) -> None:
    report = plain_look(process, "dispatch-autograd")["autograd"]
    threads = {thread["tid"]: thread for thread in report["threads"]}
    expected = backwards(process)
    assert len(expected) == 20
    fields = ("sequence_nr", "forward_op")
    wanted = {tid: tuple(facts[field] for field in ("node", *fields)) for tid, facts in expected.items()}
    assert {tid: named(threads[tid]["node"], *fields) for tid in expected} == wanted
    assert {threads[tid]["phase"] for tid in expected} == {"backward"}
    main = threads[process.tid("main")]
    assert (main["phase"], main["node"], main["next_sequence_nr"]) == ("none", None, process.truth["next_sequence_nr"])
    nodes = {tid: threads[tid]["node"] for tid in expected}
    assert {node["made_by"] for node in nodes.values()} == {process.tid("main")}
    check_lines(process, {node["name"]: node for node in nodes.values()})
    hooks = [hook for node in nodes.values() for hook in node["hooks"]]
    assert Counter(hook["function"] for hook in hooks) == {"stay": 11, "backward.<locals>.<lambda>": 9}
    assert {hook["kind"] for hook in hooks} == {"Node.register_prehook"}
    assert {hook["function"] for hook in hooks if hook["runs"]} == {"stay"}
    check_saved(nodes, expected)
    tasks = [task for task in report["graph_tasks"] if task["tids"][0] in expected]
    retained = {tid: facts["retained"] for tid, facts in expected.items()}
    assert {task["tids"][0]: task["keep_graph"] for task in tasks} == retained
    assert {(task["owner"], task["reentrant_depth"], task["has_error"]) for task in tasks} == {("cpu", 0, False)}
    assert all(task["waiting"] + task["outstanding"] <= task["nodes"] + 1 for task in tasks)
    check_reentrant(process.truth["threads"]["reentrant"], threads, report["graph_tasks"])
    assert (report["device_queues"], report["anomaly_mode"]) == ([], False)


def named(node: dict[str, Any], *fields: str) -> tuple[Any, ...]:
    return node["name"], *(node[field] for field in fields)


def check_lines(process: Inferior, nodes: dict[str, dict[str, Any]]) -> None:
    """Anomaly mode was on when the graph of ReluBackward0 was made; TwiceBackward is of a torch.autograd.Function."""
    lines = {name: (node["line"], node["line_known_by"]) for name, node in nodes.items() if node["line"] is not None}
    assert lines == {
        "ReluBackward0": (process.truth["anomalous_line"], "anomaly mode"),
        "TwiceBackward": (process.truth["function_line"], "torch.autograd.Function"),
    }
    assert nodes["ReluBackward0"]["source"] == "x = functional.layer_norm(torch.relu(x), (6,))"


def check_saved(nodes: dict[int, dict[str, Any]], expected: dict[int, dict[str, Any]]) -> None:
    stale = []
    for tid, facts in expected.items():
        found = {each["name"]: each for each in nodes[tid]["saved"]}
        tensors = {name for name, value in facts["saved"].items() if value is not None}
        assert tensors <= set(found) <= set(facts["saved"]), facts["node"]
        for name in tensors:
            shape, version = facts["saved"][name]
            assert (shape in found[name]["tensor"], found[name]["saved_version"]) == (True, version), name
        stale += [(facts["node"], name) for name, each in found.items() if each["saved_version"] != each["version"]]
    assert stale == [("MmBackward0", "self")]


def check_reentrant(facts: dict[str, Any], threads: dict[int, dict[str, Any]], tasks: list[dict[str, Any]]) -> None:
    """The node of the inner pass, and that from whose backward it was started."""
    thread = threads[facts["tid"]]
    assert named(thread["node"], "sequence_nr") == (facts["node"], facts["sequence_nr"])
    outer = [{"node": each["name"], "sequence_nr": each["sequence_nr"]} for each in thread["outer"]]
    assert outer == facts["outer"] != []
    assert [task["reentrant_depth"] for task in tasks if task["tids"] == [facts["tid"]]] == [1]
    assert not any(each["outer"] for tid, each in threads.items() if tid != facts["tid"])


def test_what_its_tensors_hold(process: Inferior) -> None:
    memory = look(process, "dispatch-info", "--memory")["memory"]
    tensors, held = process.truth["held"]
    assert memory["tensors"] == tensors > 10
    assert {each["dtype"]: [each["storages"], each["bytes"]] for each in memory["held"]} == held
    assert named(memory["largest"][0], "tensor", "bytes") == ("Linear.weight", "f32[300, 400] cpu", 480_000)
    assert memory["problems"] == []


def test_the_node_stands_between_the_frames_of_its_backward(process: Inferior) -> None:
    threads = look(process, "dispatch-bt", "--all", "--native")["threads"]
    found = {thread["tid"]: thread["backward"] for thread in threads if thread.get("backward")}
    again = process.truth["threads"]["reentrant"]
    expected = {tid: [facts] for tid, facts in backwards(process).items()} | {again["tid"]: [again, *again["outer"]]}
    numbers = {tid: [(each["node"], each["sequence_nr"]) for each in facts] for tid, facts in expected.items()}
    assert {tid: [named(node, "sequence_nr") for node in nodes] for tid, nodes in found.items()} == numbers
    for thread in threads:
        frames = {frame["level"]: frame["function"] for frame in thread["frames"] if frame["kind"] == "native"}
        if thread["tid"] in found:
            assert "Engine::evaluate_function" in frames[found[thread["tid"]][0]["level"]]


def test_the_graph_of_a_tensor(process: Inferior, tmp_path: Path) -> None:
    written = tmp_path / "graph.txt"
    graph = look(process, "dispatch-autograd", "--py", "total", "--graph", str(written))["autograd"]["graph"]
    lines = written.read_text().splitlines()
    names = Counter(line.partition(" -> ")[0].partition(" of ")[0] for line in lines if " -> " in line)
    accumulate = "torch::autograd::AccumulateGrad"
    truth = [name if name == accumulate else f"{name} {number}" for name, number in process.truth["nodes"]]
    assert len(truth) > 400
    assert names == Counter(truth)
    assert (graph["nodes"], graph["truncated"], graph["root"]["name"]) == (len(truth), False, "SumBackward0")
    stale = "self: f32[3, 6] cpu, version 0: modified in place since then, now at version 1"
    assert [line for line in lines if "modified" in line] == [f"    saved {stale}"]
    assert [each["node"]["name"] for each in graph["stale"]] == ["MmBackward0"]
    assert any(line.startswith("    saved saved_tensors[0]: f32[3, 6] cpu, version 0") for line in lines)
    edges = tmp_path / "graph.dot"
    look(process, "dispatch-autograd", "--graph", str(edges), "--thread", str(process.tid("backward-1")))
    assert re.match(r"digraph autograd \{.*SumBackward0.*\\nself: f32\[", edges.read_text(), re.DOTALL)


@pytest.mark.parametrize(("words", "said"), [("", "no thread runs a node"), ("--py bias", "bias has no grad_fn")])
def test_a_graph_needs_a_node(process: Inferior, tmp_path: Path, words: str, said: str) -> None:
    arguments = ("--graph", str(tmp_path / "graph.dot"), "--thread", str(process.tid("main")), *words.split())
    outcome = look.outcome(process, "dispatch-autograd", *arguments, json=False, check=False)
    assert outcome.status == 2, outcome
    assert said in outcome.stderr
