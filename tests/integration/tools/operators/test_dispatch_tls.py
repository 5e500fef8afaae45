"""The thread-local state of dispatch, of threads in every mode, against what each thread wrote of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool_arguments import find_thread
from gdbext.engine.targets.live.proc_target import ProcTarget
from support.programs.harness import Inferior
from support.programs.ways import Look

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

GetInferior = Callable[..., Inferior]

DEFAULTS = {
    "included": ["BackendSelect", "ADInplaceOrView"],
    "grad_mode": True,
    "inference_mode": False,
    "forward_ad": True,
    "multithreading": True,
    "view_replay": False,
    "functorch": [],
    "python_dispatcher": False,
    "python_modes": [],
    "torch_function": "enabled",
    "torch_function_modes": [],
    "autocast_cache": True,
    "autocast_nesting": 0,
    "sequence_number": 0,
}
"""What a thread that never called PyTorch has (c10/core/AutogradState.cpp, DispatchKeySet.h, autocast_mode.cpp)."""


def states(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {thread["tid"]: thread["tls"] for thread in document["threads"]}


def differences(state: dict[str, Any], truth: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Field to (what was read, what is true), for those that differ. Autocast: the devices that the truth names."""
    found = {}
    for field, true in truth.items():
        read = state[field]
        if field == "autocast":
            read = {device: read.get(device) for device in true}
        if read != true:
            found[field] = (read, true)
    return found


def test_every_mode(inferior: GetInferior, look: Look) -> None:
    process = inferior("dispatch-modes")
    threads = process.truth["threads"]
    assert len(process.truth["arrived"]) == process.truth["expected_threads"] > 20
    document = look(process, "dispatch-tls", "--all")
    assert document["errors"] == []
    read = states(document)
    wrong = {
        role: differences(read[thread["tid"]], thread["tls"]) for role, thread in threads.items() if "tls" in thread
    }
    assert {role: fields for role, fields in wrong.items() if fields} == {}


def test_a_thread_that_never_used_torch_has_initial_values(inferior: GetInferior, look: Look) -> None:
    process = inferior("dispatch-modes")
    document = look(process, "dispatch-tls", "--thread", str(process.tid("untouched")))
    [thread] = document["threads"]
    assert differences(thread["tls"], DEFAULTS) == {}
    assert not any(device["enabled"] for device in thread["tls"]["autocast"].values())


def test_the_text_names_what_is_on(inferior: GetInferior) -> None:
    process = inferior("dispatch-modes")

    def text(role: str) -> str:
        arguments = ("dispatch-tls", "--thread", str(process.tid(role)))
        return process.dispatch(*arguments, debugger="none", json=False).stdout

    assert "grad mode off" in text("no-grad")
    assert "inference mode on" in text("inference")
    assert "cpu (bfloat16), nesting 1" in text("autocast-cpu")
    assert "Vmap (level 1), Grad (level 2)" in text("vmap-of-grad")
    assert "FakeTensorMode [FAKE], Mode" in text("fake-and-mode")
    assert "all disabled" in text("no-torch-function")
    assert "python dispatcher on" in text("python-dispatcher")


@pytest.mark.parametrize("words", [["--thread", "999999999"], ["--thread", "x"], ["--all", "--thread", "1"]])
def test_wrong_threads_are_refused(inferior: GetInferior, words: list[str]) -> None:
    outcome = inferior("dispatch-modes").dispatch("dispatch-tls", *words, debugger="none", json=False, check=False)
    assert outcome.status == 2, outcome
    assert outcome.stderr


# --- what the state makes of a call ------------------------------------------------------------------


def lookup(process: Inferior, *words: str) -> dict[str, Any]:
    document = process.dispatch("dispatch-lookup", *words, debugger="none").document
    assert document["errors"] == []
    return dict(document["lookup"])


def keys_of_chain(found: dict[str, Any]) -> list[str]:
    return [link["key"] for link in found["chain"]]


CPU_GRAD = "CPU,ADInplaceOrView,AutogradCPU,AutocastCPU"
"""The key set of torch.ones(2, requires_grad=True)."""


@pytest.mark.parametrize(
    ("role", "key"),
    [
        ("default", "AutogradCPU"),
        ("untouched", "AutogradCPU"),
        ("autocast-cpu", "AutocastCPU"),
        ("below-autograd", "CPU"),
        ("excluded", "CPU"),
        ("dispatch-mode", "PythonTLSSnapshot"),
        ("vmap", "FuncTorchDynamicLayerFrontMode"),
        ("python-dispatcher", "PythonDispatcher"),
    ],
)
def test_a_threads_state_decides_the_key(inferior: GetInferior, role: str, key: str) -> None:
    process = inferior("dispatch-modes")
    arguments = ("--args", f"{CPU_GRAD};{CPU_GRAD}", "--thread", str(process.tid(role)))
    found = lookup(process, "aten::mm", *arguments)
    assert found["key"] == key
    call = found["call"]
    assert [argument["keyset"]["keys"] for argument in call["arguments"]] == [CPU_GRAD.split(",")] * 2
    assert call["thread"] == process.tid(role)
    if role != "untouched":
        truth = process.truth["threads"][role]["tls"]
        assert call["included"]["keys"] == truth["included"]
        assert call["excluded"]["keys"] == truth["excluded"]


def test_the_chain_goes_down_to_the_backend(inferior: GetInferior) -> None:
    process = inferior("dispatch-modes")
    found = lookup(process, "aten::mm", "--args", f"{CPU_GRAD};{CPU_GRAD}")
    assert keys_of_chain(found) == ["AutogradCPU", "CPU"]
    assert [link["next"] for link in found["chain"]] == ["CPU", None]
    assert [link["certainty"] for link in found["chain"]] == ["expected", "end"]
    assert found["kernel"]["function"] == "torch::autograd::VariableType::(anonymous namespace)::mm"
    assert found["call"]["fallthrough"]["keys"] == ["BackendSelect", "ADInplaceOrView"]
    view = lookup(process, "aten::t", "--args", CPU_GRAD)
    assert keys_of_chain(view) == ["AutogradCPU", "ADInplaceOrView", "CPU"]
    autocast = lookup(process, "aten::mm", "--args", CPU_GRAD, "--thread", str(process.tid("autocast-cpu")))
    assert keys_of_chain(autocast) == ["AutocastCPU", "AutogradCPU", "CPU"]
    composite = lookup(process, "aten::linear", "--args", CPU_GRAD)
    assert keys_of_chain(composite) == ["AutogradCPU"]
    assert composite["chain"][0]["why"].startswith("composite")


def test_missing_and_fallthrough_are_told(inferior: GetInferior) -> None:
    process = inferior("dispatch-modes")
    missing = lookup(process, "aten::mm", "SparseCUDA")
    kernel = missing["kernel"]
    assert (kernel["valid"], kernel["reason"], kernel["path"]) == (False, "missing", "4")
    fallthrough = lookup(process, "aten::mm", "CPU,ADInplaceOrView")
    assert fallthrough["kernel"]["fallthrough"]
    assert keys_of_chain(fallthrough) == ["ADInplaceOrView", "CPU"]


def test_the_chain_of_a_hang_ends_in_the_kernel_that_hangs(inferior: GetInferior, look: Look) -> None:
    process = inferior("meta-mm")
    tensors = process.truth["tensor_keysets"]
    arguments = ("--args", f"{tensors['x']};{tensors['w']}", "--thread", str(process.tid("main")))
    document = look(process, "dispatch-lookup", "aten::mm", *arguments)
    found = document["lookup"]
    assert keys_of_chain(found)[-1] == "Meta"
    last = found["chain"][-1]
    assert last["keyset"]["bits"] == process.truth["kernel_keyset"]
    assert (last["kernel"]["function"], last["kernel"]["python"]["line"]) == ("meta_mm", process.truth["kernel_line"])


def test_expected_chains_are_what_really_happens(inferior: GetInferior) -> None:
    """The keyset of a chain's last link is the one that reached the kernel there, bit for bit."""
    process = inferior("dispatch-chain")
    target = ProcTarget(process.pid)
    compared, keys_seen = 0, set()
    try:
        session = Session(target)
        keys = session.dispatcher.keys
        for role, calls in process.truth["calls"].items():
            fs_base = find_thread(target, str(process.tid(role))).registers()["fs_base"]
            included, excluded = session.dispatch_states.keysets(fs_base)
            for call in calls:
                united = 0
                for bits in call["arguments"]:
                    united |= int(bits, 16)
                operator = session.dispatcher.find_one(call["op"])
                start = session.chains.masked(operator, keys.minus(united | included, excluded))
                links = session.chains.chain(operator, start)
                assert links[-1].entry.key == "CPU", (role, call, links)
                assert f"{links[-1].keyset:#x}" == call["kernel"], (role, call, [link.entry.key for link in links])
                compared += 1
                keys_seen.update(link.entry.key for link in links)
    finally:
        target.close()
    assert compared > 100
    assert keys_seen >= {"AutogradCPU", "ADInplaceOrView", "Conjugate", "Negative", "AutocastCPU", "CPU"}
