"""Values of a process that only seems to sleep: each answer is of one moment, and one that the program had."""

from __future__ import annotations

from typing import Any

import pytest

from support.programs.harness import Inferior, Start

pytestmark = pytest.mark.torch

ROUNDS = 6
"""Inspections of each loop."""
NAMES = {"attribute": "holder.t", "listed": "ts[0]"}
LOOPS = (
    "full",
    "pair",
    "attribute",
    "listed",
    "gradient",
    "deep-graph",
    "refilled",
    "other-thread",
    "thrown-away",
    "nested",
)


def is_full(tensor: dict[str, Any], value: float) -> bool:
    return tensor["min"] == tensor["max"] == tensor["mean"] == value and not tensor["std"]


def could_be(loop: str, tensor: dict[str, Any]) -> bool:
    """The program had that tensor at some time."""
    sizes, strides = tensor["sizes"], tensor["strides"]
    if tensor["storage"] and tensor["storage"]["shared_by"] > 8:
        return False
    if loop in ("full", "other-thread"):
        return len(sizes) == 2 and sizes[1] == 2 * sizes[0] and is_full(tensor, sizes[0])
    if loop == "pair":
        if tensor["dtype"] == "int64":
            return sizes[1:] == [3] and strides == [3, 1] and is_full(tensor, sizes[0])
        return tensor["dtype"] == "float64" and sizes[:1] == [3] and strides == [1, 3] and is_full(tensor, sizes[1])
    if loop == "gradient":
        if tensor["requires_grad"]:
            return sizes == [] and tensor["grad_fn"]["name"] == "AddBackward0" and is_full(tensor, 9)
        return sizes == [3] and tensor["grad_fn"] is None and is_full(tensor, 3)
    if loop == "deep-graph":
        name = (tensor["grad_fn"] or {}).get("name")
        return sizes == [2] and (name, tensor["min"]) in [
            (None, 1.0),
            *(("MulBackward0", 2.0**k) for k in range(1, 10)),
        ]
    return len(sizes) == 1 and is_full(tensor, sizes[0])


def tensor_of(target: Inferior, loop: str) -> dict[str, Any]:
    outcome = target.dispatch("dispatch-tensor", "--py", NAMES.get(loop, "t"), debugger="none")
    tensor: dict[str, Any] = outcome.document["tensor"]
    return tensor


@pytest.mark.parametrize("loop", LOOPS)
def test_tensors_are_of_one_moment(inferior: Start, loop: str) -> None:
    target = inferior("waking-loops", loop, "0.003")
    for _ in range(ROUNDS):
        tensor = tensor_of(target, loop)
        assert could_be(loop, tensor), tensor
    target.assert_undisturbed()


def test_graphs_are_of_one_moment(inferior: Start) -> None:
    target = inferior("waking-loops", "deep-graph", "0.003")
    for _ in range(ROUNDS):
        outcome = target.dispatch("dispatch-autograd", "--py", "t", debugger="none", check=False)
        if outcome.status:
            assert "t has no grad_fn" in outcome.stdout, outcome  # it is w for a moment
            continue
        graph = outcome.document["autograd"]["graph"]
        assert graph["root"]["name"] == "MulBackward0"
        assert 2 <= graph["nodes"] <= 10  # multiplications, and AccumulateGrad


def test_memory_is_of_one_moment(inferior: Start) -> None:
    target = inferior("waking-loops", "listed", "0.003")
    for _ in range(ROUNDS):
        memory = target.dispatch("dispatch-info", "--memory", debugger="none").document["memory"]
        tensors = {each["tensor"] for each in memory["largest"]}
        assert len(tensors) <= 1, memory["largest"]
        assert not memory["problems"]


def test_without_a_stop_nothing_is_made_up(inferior: Start) -> None:
    target = inferior("waking-loops", "full", "0.003")
    for _ in range(ROUNDS):
        words = ("--no-stop", "dispatch-tensor", "--py", "t")
        outcome = target.dispatch(*words, debugger="none", check=False)
        if outcome.status == 0:
            assert could_be("full", outcome.document["tensor"])
        else:
            assert "ran while it was read" in outcome.stdout or "tensor" in outcome.stdout, outcome
