"""dispatch-bt on every way to a kernel that we know of: nothing missing, nothing made up, no keyset wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.programs.harness import Inferior, started
from support.programs.ways import Look

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

Everything = tuple[Inferior, dict[str, Any]]
KEYS = {
    "function-forward": ["CPU", "AutogradCPU"],
    "function-backward": ["CPU", "AutogradCPU"],
    "reentrant": ["CPU", "AutogradCPU"],
    "inference": ["CPU"],
    "no-grad": ["CPU", "AutogradCPU"],
    "conj": ["CPU", "Conjugate", "AutogradCPU"],
    "neg": ["CPU", "Negative", "AutogradCPU"],
    "overload": ["CPU", "AutogradCPU"],
    "redispatch": ["CPU"],
    "profiler": ["CPU", "AutogradCPU"],
    "profiler-boxed": ["CPU", "AutogradCPU"],
    "inplace": ["CPU", "ADInplaceOrView", "AutogradCPU"],
    "zero-tensor": ["CPU", "ZeroTensor", "AutogradCPU"],
}
"""Keys of the steps of aten::sin, innermost first, where the path through PyTorch's sources tells them."""


def steps_of(document: dict[str, Any], tid: int) -> list[dict[str, Any]]:
    (thread,) = [thread for thread in document["threads"] if thread["tid"] == tid]
    return list(thread["dispatch"])


def proven(step: dict[str, Any]) -> bool:
    return step["confidence"] in ("exact", "verified") and step["keyset"] is not None


@pytest.fixture(scope="module")
def documents() -> dict[Look, dict[str, Any]]:
    """What was told in each way: one report serves all that is asserted of it."""
    return {}


@pytest.fixture
def everything(inferior: Callable[..., Inferior], look: Look, documents: dict[Look, dict[str, Any]]) -> Everything:
    """The process and all its threads."""
    hang = inferior("dispatch-paths")
    if look not in documents:
        documents[look] = look(hang, "dispatch-bt", "--all")
    return hang, documents[look]


def test_the_innermost_kernel_and_its_keyset(everything: Everything) -> None:
    hang, document = everything
    for role, facts in hang.truth["threads"].items():
        steps = steps_of(document, facts["tid"])
        assert steps[0]["op"] in ("aten::sin", "aten::sin_"), (role, steps[0])
        assert all(step["stage"] == "in-kernel" and step["op"] for step in steps), (role, steps)
        assert "blocked" in steps[0]["kernel"]["function"], (role, steps[0])
        assert all(proven(step) for step in steps), (role, steps)
        assert int(steps[0]["keyset"]["bits"], 16) == int(facts["kernel_keyset"], 16), (role, steps[0])


def test_the_keyset_of_the_call_is_what_pytorch_computes(everything: Everything) -> None:
    hang, document = everything
    compared = 0
    for role, facts in hang.truth["threads"].items():
        if not facts["call"]:
            continue
        steps = [step for step in steps_of(document, facts["tid"]) if step["op"] == "aten::sin" and step["keyset"]]
        wanted = int(facts["call"]["bits"], 16)
        assert wanted in [int(step["keyset"]["bits"], 16) for step in steps], (role, steps)
        compared += 1
    assert compared >= 8


def test_the_chain_of_keys(everything: Everything) -> None:
    hang, document = everything
    for role, keys in KEYS.items():
        steps = [step for step in steps_of(document, hang.tid(role)) if step["op"] in ("aten::sin", "aten::sin_")]
        assert [step["key"] for step in steps] == keys, (role, steps)


@pytest.mark.parametrize("role", ["function-backward", "conj"])
def test_one_thread_alone(inferior: Callable[..., Inferior], role: str) -> None:
    hang = inferior("dispatch-paths")
    document = hang.dispatch("dispatch-bt", "--thread", str(hang.tid(role)), debugger="none").document
    assert [thread["tid"] for thread in document["threads"]] == [hang.tid(role)]
    steps = [step for step in steps_of(document, hang.tid(role)) if step["op"] in ("aten::sin", "aten::sin_")]
    assert [step["key"] for step in steps] == KEYS[role], steps


def test_a_custom_operator_under_fake_tensors() -> None:
    """The fallback of autograd stands below one that goes on with everything below its own key."""
    with started("fake-tensor-call") as hang:
        document = hang.dispatch("dispatch-bt", "--all", debugger="none").document
    steps = steps_of(document, hang.tid("main"))
    assert [step["key"] for step in steps] == ["Python", "AutogradCPU", "PythonTLSSnapshot"]
    assert goes_on_with_less(steps)
    assert all(proven(step) for step in steps)
    assert_python_dispatcher(steps_of(document, hang.tid("dispatcher")))
    zeros = [step for step in steps_of(document, hang.tid("zeros")) if step["op"].endswith("custom")]
    assert [step["key"] for step in zeros] == ["CPU", "ZeroTensor", "AutogradCPU"]
    assert goes_on_with_less(zeros)
    assert all(proven(step) for step in zeros)


def goes_on_with_less(steps: list[dict[str, Any]]) -> bool:
    bits = [int(step["keyset"]["bits"], 16) for step in steps]
    return all(inner & ~outer == 0 for inner, outer in zip(bits, bits[1:]))


def assert_python_dispatcher(steps: list[dict[str, Any]]) -> None:
    """It stands before each kernel, calls it anew for the key, and every keyset has its key (PyInterpreter.cpp)."""
    asked = ["Python", "AutogradCPU", "PythonTLSSnapshot"]
    keys = [key for each in asked for key in (each, "PythonDispatcher")]
    assert [step["key"] for step in steps] == keys
    assert [step["event"] for step in steps] == ["callBoxed", "redispatchBoxed"] * 2 + ["callBoxed"] * 2
    assert all(step["confidence"] == "exact" for step in steps), steps
    bits = [int(step["keyset"]["bits"], 16) for step in steps]
    assert {bits[0], bits[2], bits[4], bits[5]} == {0x2100001010010001}, "made of the arguments each time"
    assert bits[1:4:2] == [0x2000000010010001, 0x2000001010010001]


LAYERED = {"leaf", "tail", "boxed", "boxed_tail", "lambda", "many", "thread_typed", "thread_boxed"}
COMPOSITE = {"composite": ["leaf", "leaf", "composite"], "composite_boxed": ["leaf", "leaf", "composite_boxed"]}


@pytest.mark.parametrize("library", ["dispatch_paths", "dispatch_paths_o3"])
def test_extensions(library: str) -> None:
    """Dispatchers that a compiler inlined into a user's functions, called from Python and from plain C++ threads."""
    with started("extension-paths", library) as hang:
        document = hang.dispatch("dispatch-bt", "--all", "--args", debugger="none").document
        assert len(hang.truth["paths"]) >= 18
        for path in hang.truth["paths"]:
            steps = steps_of(document, path["tid"])
            names = [step["op"].partition("::")[2] for step in steps]
            operator = {"thread_typed": "leaf", "thread_boxed": "many", "thread_factory": "factory"}.get(
                path["name"], path["name"]
            )
            wanted = COMPOSITE.get(path["name"], [operator])
            if path["name"] in LAYERED:
                wanted = [operator] * 2
            fallback = [*wanted, operator]  # PyTorch's own autograd fallback
            assert names == wanted or (path["name"] not in LAYERED and names == fallback), (path, steps)
            assert all(proven(step) for step in steps), (path, steps)
            assert int(steps[0]["keyset"]["bits"], 16) == int(path["keyset"], 16), (path, steps[0])
            assert_arguments(path["name"], steps)


GIVEN = {
    "a": "f32[3] cpu",
    "b": "None",
    "c": "1",
    "d": "2.0",
    "e": "3",
    "g": "[f32[3] cpu]",
    "i": "[1]",
    "j": "True",
    "k": "7",
    "l": "8",
    "n": "3",
}


def assert_arguments(path: str, steps: list[dict[str, Any]]) -> None:
    """None is wrong; kernels that were called unboxed have theirs, but for a SymInt that was moved on."""
    found = [{each["name"]: each["value"] or "" for each in step["arguments"]} for step in steps]
    given = {**GIVEN, "a": "[f32[3] cpu, f32[3] cpu]"} if path == "list" else GIVEN
    shown = [(name, text) for each in found for name, text in each.items() if text]
    assert [(name, text) for name, text in shown if text != given.get(name, text)] == [], path
    if path in ("leaf", "tail", "lambda", "composite", "thread_typed", "thread_factory"):
        assert all(found[0].values()), (path, found)
    if path in ("many", "thread_boxed"):
        assert {name for name, text in found[0].items() if not text} <= {"e"}, found
