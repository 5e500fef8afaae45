"""dispatch-autograd against what autograd says of itself: a model of 500 nodes, 20 positions in its backward passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.programs.harness import Inferior
from support.programs.ways import Look
from support.truth.autograd_truth import backwards

pytestmark = [pytest.mark.torch, pytest.mark.gdb]

GetInferior = Callable[..., Inferior]
ACCUMULATE = "torch::autograd::AccumulateGrad"


@pytest.fixture
def process(inferior: GetInferior) -> Inferior:
    return inferior("autograd")


look_once = Look("live", "none")


def test_twenty_positions(process: Inferior, look: Look) -> None:
    report = look(process, "dispatch-autograd")["autograd"]
    threads = {thread["tid"]: thread for thread in report["threads"]}
    expected = backwards(process)
    assert len(expected) == 20
    found = {tid: (threads[tid]["phase"], *_named(threads[tid])) for tid in expected}
    assert found == {
        tid: ("backward", facts["node"], facts["sequence_nr"], facts["forward_op"]) for tid, facts in expected.items()
    }
    main = threads[process.tid("main")]
    assert (main["phase"], main["node"], main["next_sequence_nr"]) == ("none", None, process.truth["next_sequence_nr"])
    assert {threads[tid]["node"]["made_by"] for tid in expected} == {process.tid("main")}
    _check_lines(process, {threads[tid]["node"]["name"]: threads[tid]["node"] for tid in expected})
    _check_hooks(threads, expected)
    _check_saved(threads, expected)
    _check_tasks(report["graph_tasks"], expected)
    _check_reentrant(process.truth["threads"]["reentrant"], threads, report["graph_tasks"])
    assert report["device_queues"] == []
    assert report["anomaly_mode"] is False


def _named(thread: dict[str, Any]) -> tuple[Any, ...]:
    node = thread["node"]
    return node["name"], node["sequence_nr"], node["forward_op"]


def _check_lines(process: Inferior, nodes: dict[str, dict[str, Any]]) -> None:
    """Anomaly mode was on when the graph of ReluBackward0 was made; TwiceBackward is of a torch.autograd.Function."""
    known = {name: (node["line"], node["line_known_by"]) for name, node in nodes.items() if node["line"] is not None}
    assert known == {
        "ReluBackward0": (process.truth["anomalous_line"], "anomaly mode"),
        "TwiceBackward": (process.truth["function_line"], "torch.autograd.Function"),
    }
    assert nodes["ReluBackward0"]["source"] == "x = functional.layer_norm(torch.relu(x), (6,))"


def _check_saved(threads: dict[int, dict[str, Any]], expected: dict[int, dict[str, Any]]) -> None:
    """Shapes and versions; of one of them, the tensor was modified in place after it had been saved."""
    stale = []
    for tid, facts in expected.items():
        node, names = threads[tid]["node"], set(facts["saved"])
        found = {each["name"]: each for each in node["saved"]}
        tensors = {name for name, value in facts["saved"].items() if value is not None}
        assert tensors <= set(found) <= names, facts["node"]
        for name in tensors:
            shape, version = facts["saved"][name]
            assert (shape in found[name]["tensor"], found[name]["saved_version"]) == (True, version), name
        stale += [(facts["node"], name) for name, each in found.items() if each["saved_version"] != each["version"]]
    assert stale == [("MmBackward0", "self")]


def _check_hooks(threads: dict[int, dict[str, Any]], expected: dict[int, dict[str, Any]]) -> None:
    functions = Counter(hook["function"] for tid in expected for hook in threads[tid]["node"]["hooks"])
    assert functions == {"stay": 11, "backward.<locals>.<lambda>": 9}
    hooks = [hook for tid in expected for hook in threads[tid]["node"]["hooks"]]
    assert {hook["kind"] for hook in hooks} == {"Node.register_prehook"}
    assert {hook["function"] for hook in hooks if hook["runs"]} == {"stay"}


def _check_reentrant(facts: dict[str, Any], threads: dict[int, dict[str, Any]], tasks: list[dict[str, Any]]) -> None:
    """The node of the inner pass, and that from whose backward it was started."""
    thread = threads[facts["tid"]]
    assert _named(thread)[:2] == (facts["node"], facts["sequence_nr"])
    outer = [{"node": each["name"], "sequence_nr": each["sequence_nr"]} for each in thread["outer"]]
    assert outer == facts["outer"] != []
    assert [task["reentrant_depth"] for task in tasks if task["tids"] == [facts["tid"]]] == [1]
    assert [each["outer"] for tid, each in threads.items() if tid != facts["tid"] and each["outer"]] == []


def _check_tasks(tasks: list[dict[str, Any]], expected: dict[int, dict[str, Any]]) -> None:
    tasks = [task for task in tasks if task["tids"][0] in expected]
    assert {task["tids"][0]: task["keep_graph"] for task in tasks} == {
        tid: facts["retained"] for tid, facts in expected.items()
    }
    assert {(task["owner"], task["reentrant_depth"], task["has_error"]) for task in tasks} == {("cpu", 0, False)}
    assert [task for task in tasks if task["waiting"] + task["outstanding"] > task["nodes"] + 1] == []


def test_what_its_tensors_hold(process: Inferior) -> None:
    memory = look_once(process, "dispatch-info", "--memory")["memory"]
    tensors, held = process.truth["held"]
    assert memory["tensors"] == tensors > 10
    assert {each["dtype"]: [each["storages"], each["bytes"]] for each in memory["held"]} == held
    assert memory["largest"][0]["name"] == "Linear.weight"
    assert (memory["largest"][0]["tensor"], memory["largest"][0]["bytes"]) == ("f32[300, 400] cpu", 480_000)
    assert memory["problems"] == []


def test_the_node_stands_between_the_frames_of_its_backward(process: Inferior) -> None:
    report = look_once(process, "dispatch-bt", "--all", "--native")
    expected = backwards(process)
    found = {thread["tid"]: thread for thread in report["threads"]}
    nodes = {tid: [(node["name"], node["sequence_nr"]) for node in found[tid].get("backward", ())] for tid in found}
    again = process.truth["threads"]["reentrant"]
    assert {tid: each for tid, each in nodes.items() if each} == {
        again["tid"]: [(facts["node"], facts["sequence_nr"]) for facts in (again, *again["outer"])],
        **{tid: [(facts["node"], facts["sequence_nr"])] for tid, facts in expected.items()},
    }
    for tid in expected:
        frames = {frame["level"]: frame["function"] for frame in found[tid]["frames"] if frame["kind"] == "native"}
        assert "Engine::evaluate_function" in frames[found[tid]["backward"][0]["level"]]


def test_the_graph_of_a_tensor(process: Inferior, tmp_path: Path) -> None:
    written = tmp_path / "graph.txt"
    report = look_once(process, "dispatch-autograd", "--py", "total", "--graph", str(written))["autograd"]
    lines = written.read_text().splitlines()
    names = [line.partition(" -> ")[0] for line in lines if " -> " in line]
    truth = [name if name == ACCUMULATE else f"{name} {number}" for name, number in process.truth["nodes"]]
    assert len(truth) > 400
    assert Counter(name.partition(" of ")[0] for name in names) == Counter(truth)
    assert (report["graph"]["nodes"], report["graph"]["truncated"]) == (len(truth), False)
    assert report["graph"]["root"]["name"] == "SumBackward0"
    stale = "self: f32[3, 6] cpu, version 0: modified in place since, it is at version 1 now"
    assert [line for line in lines if "modified" in line] == [f"    saved {stale}"]
    assert [each["node"]["name"] for each in report["graph"]["stale"]] == ["MmBackward0"]
    assert any(line.startswith("    saved saved_tensors[0]: f32[3, 6] cpu, version 0") for line in lines)
    edges = tmp_path / "graph.dot"
    look_once(process, "dispatch-autograd", "--graph", str(edges), "--thread", str(process.tid("backward-1")))
    text = edges.read_text()
    assert text.startswith("digraph autograd {")
    assert "SumBackward0" in text
    assert "\\nself: f32[" in text


def test_a_graph_needs_a_node(process: Inferior, tmp_path: Path) -> None:
    arguments = ("--graph", str(tmp_path / "graph.dot"), "--thread", str(process.tid("main")))
    outcome = process.dispatch("dispatch-autograd", *arguments, debugger="none", json=False, check=False)
    assert outcome.status == 2
    assert "no thread runs a node" in outcome.stderr
    named = process.dispatch("dispatch-autograd", *arguments, "--py", "bias", debugger="none", json=False, check=False)
    assert "bias has no grad_fn" in named.stderr
