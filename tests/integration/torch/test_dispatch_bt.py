"""dispatch-bt on real processes, live and as cores, with gdb and without: what it says against what they wrote down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.programs.harness import Inferior
from support.programs.ways import Look

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

Start = Callable[..., Inferior]


def thread_of(document: dict[str, Any], tid: int) -> dict[str, Any]:
    (found,) = [thread for thread in document["threads"] if thread["tid"] == tid]
    return dict(found)


def qualified(step: dict[str, Any]) -> str:
    return f"{step['op']}.{step['overload']}" if step["overload"] else str(step["op"])


def summary(step: dict[str, Any]) -> tuple[str, str, str | None]:
    return step["event"], qualified(step), step["key"]


def assert_proven(steps: list[dict[str, Any]]) -> None:
    for step in steps:
        assert step["confidence"] in ("exact", "verified"), step
        assert step["stage"] == "in-kernel", step
        assert step["kernel"]["valid"], step


def test_the_chain_of_the_meta_mm_hang(inferior: Start, look: Look) -> None:
    hang = inferior("meta-mm")
    document = look(hang, "dispatch-bt")
    steps = thread_of(document, hang.tid("main"))["dispatch"]
    assert_proven(steps)
    assert [summary(step) for step in steps] == [
        ("redispatch", "aten::mm", "Meta"),
        ("call", "aten::mm", "AutogradMeta"),
        ("call", "aten::matmul", "AutogradMeta"),
        ("call", "aten::linear", "AutogradMeta"),
    ]
    wanted = [hang.truth["kernel_keyset"], *(call["bits"] for call in hang.truth["calls"])]
    assert [int(step["keyset"]["bits"], 16) for step in steps] == [int(bits, 16) for bits in wanted]
    assert [step["keyset"]["keys"] for step in steps[1:]] == [call["keys"] for call in hang.truth["calls"]]
    kernel = steps[0]["kernel"]
    assert kernel["function"].startswith("meta_mm at ")
    assert kernel["function"].endswith(f"meta_mm.py:{hang.truth['kernel_line']}")
    assert (kernel["boxed"], kernel["unboxed"], kernel["path"]) == (True, False, "1")
    assert "VariableType" in steps[1]["kernel"]["function"]
    assert "VariableType" in steps[1]["kernel"]["registered_at"]


def test_the_report_says_what_was_looked_at(inferior: Start, look: Look) -> None:
    hang = inferior("meta-mm")
    target = look(hang, "dispatch-bt")["target"]
    assert (target["kind"], target["debugger"], target["pid"]) == (look.kind, look.debugger, hang.pid)
    assert target["torch"]["version"] == hang.truth["torch"]
    assert target["torch"]["layout"]["match"] == "exact"
    assert target["python"]["version"] == hang.truth["python"]


def test_python_frames_stand_in_place(inferior: Start, look: Look) -> None:
    hang = inferior("meta-mm")
    document = look(hang, "dispatch-bt", "--native")
    frames = thread_of(document, hang.tid("main"))["frames"]
    kinds = [frame["function"] for frame in frames]
    kernel = kinds.index("meta_mm")
    assert frames[kernel]["kind"] == "python"
    assert frames[kernel + 1]["function"].startswith("_PyEval_EvalFrameDefault")
    boxed = next(i for i, name in enumerate(kinds) if "PythonKernelHolder::operator()" in name)
    outer = kinds.index("<module>")
    assert kernel < boxed < outer
    levels = [frame["level"] for frame in frames if frame["kind"] == "native"]
    assert levels == list(range(len(levels)))


@pytest.mark.program("meta-mm")
def test_a_stripped_python_tells_the_same(inferior: Start, look: Look) -> None:
    hang = inferior("meta-mm", python="debian")
    document = look(hang, "dispatch-bt")
    thread = thread_of(document, hang.tid("main"))
    assert_proven(thread["dispatch"])
    assert [step["key"] for step in thread["dispatch"]] == ["Meta", "AutogradMeta", "AutogradMeta", "AutogradMeta"]
    assert "meta_mm" in [frame["function"] for frame in thread["python_frames"]]


FUNCTORCH = {
    "vmap": ["CPU", "FuncTorchDynamicLayerBackMode", "FuncTorchBatched", "FuncTorchDynamicLayerFrontMode"],
    "grad": ["CPU", "FuncTorchDynamicLayerBackMode", "AutogradCPU", "FuncTorchDynamicLayerFrontMode"],
}


@pytest.mark.program("functorch")
def test_functorch_layers(inferior: Start, look: Look) -> None:
    hang = inferior("functorch")
    document = look(hang, "dispatch-bt", "--all")
    for role, layers in FUNCTORCH.items():
        steps = thread_of(document, hang.tid(role))["dispatch"]
        assert_proven(steps)
        keys = [step["key"] for step in steps]
        assert [key for key in keys if key in layers][:1] == ["CPU"], role
        assert set(layers) <= set(keys), role
        truth = hang.truth["threads"][role]["kernel_keyset"]
        assert int(steps[0]["keyset"]["bits"], 16) == int(truth, 16), role


@pytest.mark.program("python-key")
def test_operators_that_the_python_key_took(inferior: Start, look: Look) -> None:
    hang = inferior("python-key")
    document = look(hang, "dispatch-bt", "--all")
    for role, operator in (("subclass", "aten::mm"), ("mode", "aten::exp"), ("fake", "gdbext_python::slow")):
        steps = thread_of(document, hang.tid(role))["dispatch"]
        assert_proven(steps)
        assert (operator, "Python") in [(qualified(step), step["key"]) for step in steps], role
        python = next(step for step in steps if step["key"] == "Python")
        assert "pythonFallback" in python["kernel"]["function"], role
        assert "Python" in python["keyset"]["keys"], role


def test_each_layer_of_a_debug_build_is_shown_once(inferior: Start, look: Look) -> None:
    hang = inferior("debug-dispatch")
    document = look(hang, "dispatch-bt", "--all")
    for role, call in hang.truth["calls"].items():
        thread = hang.truth["threads"][role]
        steps = thread_of(document, int(thread["tid"]))["dispatch"]
        assert_proven(steps)
        layered = role.startswith("layered")
        own = [step for step in steps if step["op"] == f"gdbext_debug::{role}"]
        assert [step["key"] for step in own] == (["CPU", "AutogradCPU"] if layered else ["AutogradCPU"])
        assert int(own[-1]["keyset"]["bits"], 16) == int(call["bits"], 16)
        mm = [step for step in steps if step["op"] == "aten::mm"]
        assert [step["key"] for step in mm] == ["CPU", "AutogradCPU"]
        assert int(mm[0]["keyset"]["bits"], 16) == int(thread["kernel_keyset"], 16)
        assert int(mm[1]["keyset"]["bits"], 16) == int(hang.truth["mm"]["bits"], 16)
        assert len(steps) == len(own) + len(mm)
        boxed = role.endswith("boxed")
        assert mm[1]["event"] == ("callBoxed" if boxed else "call")


@pytest.mark.program("nested-normal")
def test_normal_nesting(inferior: Start, look: Look) -> None:
    hang = inferior("nested-normal")
    document = look(hang, "dispatch-bt", "--all")
    for role in ("inplace", "functorch", "python"):
        thread = hang.truth["threads"][role]
        steps = thread_of(document, int(thread["tid"]))["dispatch"]
        assert_proven(steps)
        assert steps[0]["op"] == thread["op"], role
        assert int(steps[0]["keyset"]["bits"], 16) == int(thread["kernel_keyset"], 16), role
        if role == "inplace":
            assert [step["key"] for step in steps] == ["CPU", "ADInplaceOrView", "AutogradCPU"]


def test_why_shows_the_proof(inferior: Start, look: Look) -> None:
    hang = inferior("meta-mm")
    outcome = look.outcome(hang, "dispatch-bt", "--why", json=False)
    assert "static handle of at::_ops::mm" in outcome.stdout
    assert "passed in rdx by the call in frame #" in outcome.stdout
    steps = look(hang, "dispatch-bt", "--why")["threads"][0]["dispatch"]
    assert all(step["evidence"] for step in steps)


def test_why_shows_the_keys_of_each_tensor_argument(inferior: Start, look: Look) -> None:
    hang = inferior("meta-mm")
    steps = thread_of(look(hang, "dispatch-bt", "--why"), hang.tid("main"))["dispatch"]
    linear = " | ".join(steps[-1]["evidence"])
    assert "AutogradMeta has the highest priority of DispatchKeySet(Meta, AutogradMeta)" in linear
    for argument, shape, tensor in (("input", "f32[2, 4, 16] meta", "x"), ("weight", "f32[8, 16] meta", "w")):
        bits = int(hang.truth["tensor_keysets"][tensor], 16)
        keys = "DispatchKeySet(Meta, ADInplaceOrView, AutogradMeta)"
        assert f"argument {argument}: {shape} has {keys} {bits:#x}" in linear


@pytest.mark.program("nested-normal")
def test_a_thread_is_chosen_by_its_tid(inferior: Start, look: Look) -> None:
    hang = inferior("nested-normal")
    document = look(hang, "dispatch-bt", "--thread", str(hang.tid("python")))
    (thread,) = document["threads"]
    assert thread["tid"] == hang.tid("python")
    assert [step["op"] for step in thread["dispatch"]][:1] == ["aten::cos"]


def test_an_unknown_thread_is_a_usage_error(inferior: Start, look: Look) -> None:
    outcome = look.outcome(inferior("meta-mm"), "dispatch-bt", "--thread", "999999999", check=False)
    assert outcome.status == 2
    assert "999999999" in outcome.stdout + outcome.stderr


@pytest.mark.program("boxed-recursion")
@pytest.mark.parametrize("kind", ["fallback", "kernel", "pair"])
def test_a_deep_recursion_is_folded(inferior: Start, kind: str) -> None:
    hang = inferior("boxed-recursion", kind, "300")
    (thread,) = hang.truth["threads"].values()
    tid = str(thread["tid"])
    outcome = hang.dispatch("dispatch-bt", "--thread", tid, debugger="none", json=False)
    assert "times in a row" in outcome.stdout
    assert len(outcome.stdout.splitlines()) < 60
    document = hang.dispatch("dispatch-bt", "--thread", tid, debugger="none").document
    steps = document["threads"][0]["dispatch"]
    assert len(steps) >= 300
    assert sum(step["confidence"] in ("exact", "verified") for step in steps) >= 0.98 * len(steps)
