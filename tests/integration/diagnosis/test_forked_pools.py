"""A forked child waits, asleep or spinning, in a library whose threads stayed in its parent."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from support.programs.harness import Inferior, Start

needs_onnxruntime = pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime"), reason="onnxruntime is not installed"
)
LIBRARIES = [
    pytest.param("waits", marks=pytest.mark.compiler),
    pytest.param("spins", marks=pytest.mark.compiler),
    pytest.param("onnxruntime", marks=needs_onnxruntime),
]


def verdict(target: Inferior) -> dict[str, Any]:
    answer: dict[str, Any] = target.dispatch("dispatch-diagnose", debugger="none").document["verdict"]
    return answer


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_threads_stayed_in_the_parent(inferior: Start, library: str) -> None:
    target = inferior("forked_pools", library, "child")
    found = verdict(target)
    assert found["kind"] == "missing-workers", found["summary"]
    assert found["threads"] == [target.tid("main")]
    name = "onnxruntime_pybind11_state" if library == "onnxruntime" else "libforked_pool"
    stayed = f"the threads of {name} stayed in the parent process {target.truth['parent']}, which forked this one"
    assert stayed in found["summary"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_pool_of_its_own_works(inferior: Start, library: str) -> None:
    target = inferior("forked_pools", library, "own")
    for _ in range(5):
        assert verdict(target)["kind"] != "missing-workers"


@pytest.mark.compiler
def test_a_child_that_computes_without_the_pool_runs(inferior: Start) -> None:
    target = inferior("forked_pools", "spins", "alone")
    for _ in range(5):
        assert verdict(target)["kind"] in ("busy", "slow")
