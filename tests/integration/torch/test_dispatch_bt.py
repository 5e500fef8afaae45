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


def proven_steps(hang: Inferior, document: dict[str, Any], role: str) -> list[dict[str, Any]]:
    """The steps of a thread, each of which is proven; the innermost keyset is the one that the kernel was given."""
    steps: list[dict[str, Any]] = thread_of(document, hang.tid(role))["dispatch"]
    for step in steps:
        assert step["confidence"] in ("exact", "verified"), step
        assert step["stage"] == "in-kernel", step
        assert step["kernel"]["valid"], step
    truth = hang.truth["threads"][role].get("kernel_keyset")
    assert truth is None or int(steps[0]["keyset"]["bits"], 16) == int(truth, 16), role
    return steps


def test_the_meta_mm_hang(inferior: Start, look: Look) -> None:
    hang = inferior("meta-mm")
    document = look(hang, "dispatch-bt", "--why", "--native")
    steps = proven_steps(hang, document, "main")
    assert [(step["event"], step["op"], step["key"]) for step in steps] == [
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
    assert all(step["evidence"] for step in steps)
    assert_keys_of_arguments(hang, " | ".join(steps[-1]["evidence"]))
    assert_python_frames_in_place(thread_of(document, hang.tid("main"))["frames"])
    target = document["target"]
    assert (target["kind"], target["debugger"], target["pid"]) == (look.kind, look.debugger, hang.pid)
    assert target["torch"]["version"] == hang.truth["torch"]
    assert target["torch"]["layout"]["match"] == "exact"
    assert target["python"]["version"] == hang.truth["python"]


def assert_keys_of_arguments(hang: Inferior, linear: str) -> None:
    assert "AutogradMeta has the highest priority of DispatchKeySet(Meta, AutogradMeta)" in linear
    for argument, tensor in (("input: f32[2, 4, 16] meta", "x"), ("weight: f32[8, 16] meta", "w")):
        bits = int(hang.truth["tensor_keysets"][tensor], 16)
        keys = "DispatchKeySet(Meta, ADInplaceOrView, AutogradMeta)"
        assert f"argument {argument} has {keys} {bits:#x}" in linear


def assert_python_frames_in_place(frames: list[dict[str, Any]]) -> None:
    names = [frame["function"] for frame in frames]
    kernel = names.index("meta_mm")
    assert frames[kernel]["kind"] == "python"
    assert frames[kernel + 1]["function"].startswith("_PyEval_EvalFrameDefault")
    boxed = next(i for i, name in enumerate(names) if "PythonKernelHolder::operator()" in name)
    assert kernel < boxed < names.index("<module>")
    levels = [frame["level"] for frame in frames if frame["kind"] == "native"]
    assert levels == list(range(len(levels)))


def test_why_shows_the_proof_and_an_unknown_thread_is_a_usage_error(inferior: Start) -> None:
    hang = inferior("meta-mm")
    text = hang.dispatch("dispatch-bt", "--why", debugger="none", json=False).stdout
    assert "static handle of at::_ops::mm" in text
    assert "passed in rdx by the call in frame #" in text
    outcome = hang.dispatch("dispatch-bt", "--thread", "999999999", debugger="none", check=False)
    assert outcome.status == 2
    assert "999999999" in outcome.stdout + outcome.stderr


@pytest.mark.program("meta-mm")
def test_a_stripped_python_tells_the_same(inferior: Start, plain_look: Look) -> None:
    hang = inferior("meta-mm", python="debian")
    document = plain_look(hang, "dispatch-bt")
    steps = proven_steps(hang, document, "main")
    assert [step["key"] for step in steps] == ["Meta", "AutogradMeta", "AutogradMeta", "AutogradMeta"]
    assert "meta_mm" in [frame["function"] for frame in thread_of(document, hang.tid("main"))["python_frames"]]


def test_each_layer_of_a_debug_build_is_shown_once(inferior: Start) -> None:
    hang = inferior("debug-dispatch")
    document = hang.dispatch("dispatch-bt", "--all", debugger="none").document
    for role, call in hang.truth["calls"].items():
        steps = proven_steps(hang, document, role)
        own = [step for step in steps if step["op"] == f"gdbext_debug::{role}"]
        assert [step["key"] for step in own] == ["CPU", "AutogradCPU"][0 if role.startswith("layered") else 1 :]
        assert int(own[-1]["keyset"]["bits"], 16) == int(call["bits"], 16)
        mm = [step for step in steps if step["op"] == "aten::mm"]
        assert [step["key"] for step in mm] == ["CPU", "AutogradCPU"]
        assert int(mm[1]["keyset"]["bits"], 16) == int(hang.truth["mm"]["bits"], 16)
        assert len(steps) == len(own) + len(mm)
        assert mm[1]["event"] == ("callBoxed" if role.endswith("boxed") else "call")


@pytest.mark.program("nested-normal")
def test_normal_nesting_and_a_thread_chosen_by_its_tid(inferior: Start) -> None:
    hang = inferior("nested-normal")
    for role in ("inplace", "functorch", "python"):
        document = hang.dispatch("dispatch-bt", "--thread", str(hang.tid(role)), debugger="none").document
        assert [thread["tid"] for thread in document["threads"]] == [hang.tid(role)]
        steps = proven_steps(hang, document, role)
        assert steps[0]["op"] == hang.truth["threads"][role]["op"], role
        if role == "inplace":
            assert [step["key"] for step in steps] == ["CPU", "ADInplaceOrView", "AutogradCPU"]


@pytest.mark.program("boxed-recursion")
def test_a_deep_recursion_is_folded(inferior: Start) -> None:
    hang = inferior("boxed-recursion", "pair", "300")
    (thread,) = hang.truth["threads"].values()
    words = ("dispatch-bt", "--thread", str(thread["tid"]))
    text = hang.dispatch(*words, debugger="none", json=False).stdout
    assert "times in a row" in text
    assert len(text.splitlines()) < 60
    steps = hang.dispatch(*words, debugger="none").document["threads"][0]["dispatch"]
    assert len(steps) >= 300
    assert sum(step["confidence"] in ("exact", "verified") for step in steps) >= 0.98 * len(steps)
