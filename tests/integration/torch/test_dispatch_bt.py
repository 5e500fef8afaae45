"""dispatch-bt on real processes and cores, on every way to a kernel that we know of: beside what they wrote down."""

from __future__ import annotations

from typing import Any

import pytest

from support.programs.harness import Inferior, Start, started
from support.programs.ways import Look

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]


def steps_of(document: dict[str, Any], tid: int, what: str = "dispatch") -> list[dict[str, Any]]:
    (found,) = [thread[what] for thread in document["threads"] if thread["tid"] == tid]
    return list(found)


def proven_steps(hang: Inferior, document: dict[str, Any], role: str) -> list[dict[str, Any]]:
    """The steps of a thread, each of which is proven; the innermost keyset is the one that the kernel was given."""
    steps = steps_of(document, hang.tid(role))
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
    called = [("call", f"aten::{name}", "AutogradMeta") for name in ("mm", "matmul", "linear")]
    redispatch = ("redispatch", "aten::mm", "Meta")
    assert [(step["event"], step["op"], step["key"]) for step in steps] == [redispatch, *called]
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
    assert_python_frames_in_place(steps_of(document, hang.tid("main"), "frames"))
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


BATCHED = ("FuncTorchDynamicLayerBackMode", "FuncTorchBatched", "FuncTorchDynamicLayerFrontMode")
KEYS = {
    **{name: ["CPU", "AutogradCPU"] for name in ("function-forward", "function-backward", "no-grad")},
    **{name: ["CPU", "AutogradCPU"] for name in ("overload", "profiler", "profiler-boxed")},
    **{name: ["CPU"] for name in ("inference", "redispatch")},
    "conj": ["CPU", "Conjugate", "AutogradCPU"],
    "inplace": ["CPU", "ADInplaceOrView", "AutogradCPU"],
    "functionalize": ["CPU", "AutogradCPU", "Functionalize", "FuncTorchDynamicLayerFrontMode"],
    "vmap-vmap": ["CPU", "AutogradCPU", *BATCHED, *BATCHED],
    "modes": ["CPU", "Python", "Python", "AutogradCPU", "PythonTLSSnapshot"],
    "sparse-csr": ["CPU", "SparseCsrCPU", "AutogradCPU"],
    "nested": ["CPU", "NestedTensorCPU", "AutogradNestedTensor"],
}
"""Keys of the steps of aten::sin, innermost first, where the path through PyTorch's sources tells them."""


def proven(step: dict[str, Any]) -> bool:
    return step["confidence"] in ("exact", "verified") and step["keyset"] is not None


def test_every_path_to_a_kernel(inferior: Start, plain_look: Look) -> None:
    hang = inferior("dispatch-paths")
    document = plain_look(hang, "dispatch-bt", "--all")
    compared = 0
    for role, facts in hang.truth["threads"].items():
        steps = steps_of(document, facts["tid"])
        assert steps[0]["op"] in ("aten::sin", "aten::sin_"), (role, steps[0])
        assert all(step["stage"] == "in-kernel" and step["op"] for step in steps), (role, steps)
        assert "blocked" in steps[0]["kernel"]["function"], (role, steps[0])
        assert all(proven(step) for step in steps), (role, steps)
        assert int(steps[0]["keyset"]["bits"], 16) == int(facts["kernel_keyset"], 16), (role, steps[0])
        of_sin = [step for step in steps if step["op"] in ("aten::sin", "aten::sin_")]
        assert [step["key"] for step in of_sin] == KEYS.get(role, [step["key"] for step in of_sin]), (role, steps)
        if facts["call"]:
            wanted = int(facts["call"]["bits"], 16)
            assert wanted in [int(step["keyset"]["bits"], 16) for step in of_sin], (role, steps)
            compared += 1
    assert compared >= 6
    assert hang.truth["threads"].keys() >= KEYS.keys()


def test_a_custom_operator_under_fake_tensors() -> None:
    """The fallback of autograd stands below one that goes on with everything below its own key."""
    with started("fake-tensor-call") as hang:
        document = hang.dispatch("dispatch-bt", "--all", debugger="none").document
    steps = steps_of(document, hang.tid("main"))
    assert [step["key"] for step in steps] == ["Python", "AutogradCPU", "PythonTLSSnapshot"]
    assert goes_on_with_less(steps)
    assert "pythonFallback" in steps[0]["kernel"]["function"]
    assert "Python" in steps[0]["keyset"]["keys"]
    assert_python_dispatcher(steps_of(document, hang.tid("dispatcher")))
    zeros = [step for step in steps_of(document, hang.tid("zeros")) if step["op"].endswith("custom")]
    assert [step["key"] for step in zeros] == ["CPU", "ZeroTensor", "AutogradCPU"]
    assert goes_on_with_less(zeros)


def goes_on_with_less(steps: list[dict[str, Any]]) -> bool:
    bits = [int(step["keyset"]["bits"], 16) for step in steps if proven(step)]
    return len(bits) == len(steps) and all(inner & ~outer == 0 for inner, outer in zip(bits, bits[1:]))


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


THREADS = {"thread_typed": "leaf", "thread_boxed": "many", "thread_factory": "factory"}
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
            operator = THREADS.get(path["name"], path["name"])
            if path["name"] in LAYERED:
                assert names == [operator] * 2, (path, steps)
            else:  # with PyTorch's own autograd fallback, or without
                wanted = COMPOSITE.get(path["name"], [operator])
                assert names in (wanted, [*wanted, operator]), (path, steps)
            assert all(proven(step) for step in steps), (path, steps)
            assert int(steps[0]["keyset"]["bits"], 16) == int(path["keyset"], 16), (path, steps[0])
            assert_arguments(path["name"], steps)


GIVEN = dict(zip("abcdegijkln", ["f32[3] cpu", "None", "1", "2.0", "3", "[f32[3] cpu]", "[1]", "True", "7", "8", "3"]))
"""What the program gives to each parameter, as text."""


def assert_arguments(path: str, steps: list[dict[str, Any]]) -> None:
    found = [{each["name"]: each["value"] or "" for each in step["arguments"]} for step in steps]
    given = {**GIVEN, "a": "[f32[3] cpu, f32[3] cpu]"} if path == "list" else GIVEN
    shown = [(name, text) for each in found for name, text in each.items() if text]
    assert [(name, text) for name, text in shown if text != given.get(name, text)] == [], path
    if path in ("leaf", "tail", "lambda", "composite", "thread_typed", "thread_factory"):
        assert all(found[0].values()), (path, found)
    if path in ("many", "thread_boxed"):
        assert {name for name, text in found[0].items() if not text} <= {"e"}, found
