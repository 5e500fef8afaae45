"""Arguments of every kind, tensors, registers and memory of another process, against what that process says of them."""

from __future__ import annotations

from typing import Any

import pytest

from gdbext.diagnosis.session import Session
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import BadData, MemoryFault
from gdbext.torch.stack import Argument
from support.programs.harness import Inferior, Start
from support.programs.ways import Look
from support.truth import keyset_truth

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

OVERWRITTEN = {
    "aten::nll_loss_forward weight",
    "aten::upsample_bilinear2d scales_h",
    "aten::upsample_bilinear2d scales_w",
}
"""Arguments whose registers or stack slots the compiled callers have used for something else since."""


def found_arguments(process: Inferior) -> dict[str, dict[str, Argument]]:
    with ProcTarget(process.pid) as target:
        session = Session(target)
        reporter = ArgumentReporter(session)
        threads = {thread.tid: thread for thread in target.memory.threads()}
        found = {}
        for role, facts in process.truth["threads"].items():
            frames = reporter.frames(session.threads.snapshot(threads[facts["tid"]]).stack)
            outermost = next(frame for frame in reversed(frames) if frame.qualified == facts["op"])
            found[role] = {argument.name: argument for argument in outermost.arguments}
        return found


def test_arguments_of_every_kind(inferior: Start) -> None:
    """What a fallback of PyTorch's has rewritten is no argument: those are other tensors than were given."""
    process = inferior("operator-arguments")
    found = found_arguments(process)
    assert len(found) >= 19
    wrong: dict[str, Any] = {}
    unknown = set()
    for role, facts in process.truth["threads"].items():
        for name, text in facts["arguments"].items():
            argument = found[role][name]
            if argument.text == "":
                unknown.add(f"{facts['op']} {name}")
            elif argument.text != text:
                wrong[f"{role} {name}"] = (argument, text)
    assert wrong == {}
    assert unknown <= OVERWRITTEN
    rewritten = {role: facts["address"] for role, facts in process.truth["threads"].items() if "address" in facts}
    assert len(rewritten) == 4
    for role, address in rewritten.items():
        assert all(each.address == address for each in found[role]["_args"].tensors), role


def test_the_text_shows_them(inferior: Start) -> None:
    """The ``*_args`` of a kernel in Python is not the argument of that name."""
    process = inferior("operator-arguments")
    outcome = process.dispatch("dispatch-bt", "--args", "--all", debugger="none", json=False)
    assert "(tensors=[f32[3, 4] meta, f32[3, 4] meta], dim=1)" in outcome.stdout
    assert "_args=(" not in outcome.stdout


def test_arguments_under_modes_and_subclasses(inferior: Start) -> None:
    """They are those that ``__torch_dispatch__`` was given, also where its variables have others by now."""
    process = inferior("mode-arguments")
    threads = {
        thread["tid"]: thread for thread in process.dispatch("dispatch-bt", "--args", "--all").document["threads"]
    }
    seen = known = 0
    wrong: list[Any] = []
    for role, facts in process.truth["threads"].items():
        steps = [step for step in threads[facts["tid"]]["dispatch"] if qualified(step) == facts["op"]]
        assert len(steps) >= 2, role
        for step in steps:
            for argument in step["arguments"]:
                seen += 1
                text, true = argument["value"], facts["arguments"][argument["name"]]
                known += text is not None
                shown = [int(each["address"], 16) for each in argument.get("tensors", ()) if true != "None"]
                addresses = facts["tensors"][argument["name"]] or (shown if true == "i64[] cpu" else [])
                if text is not None and (text.replace("undefined", "None"), shown) != (true, addresses):
                    wrong.append((role, step["key"], argument, true))
    assert not wrong
    assert len(process.truth["threads"]) == 34
    assert known >= 0.95 * seen, (known, seen)


def qualified(step: dict[str, Any]) -> str:
    return f"{step['op']}.{step['overload']}" if step["overload"] else str(step["op"])


def test_keysets_of_tensors_and_what_is_none(inferior: Start) -> None:
    process = inferior("dispatch-tensors")
    addresses = {name: int(truth["address"], 16) for name, truth in process.truth["tensors"].items()}
    with ProcTarget(process.pid) as target:
        session = Session(target)
        for name, truth in process.truth["tensors"].items():
            facts = session.tensors.read(addresses[name])
            assert facts.key_set == session.tensors.key_set(facts.address) == int(truth["bits"], 16), name
        good = addresses["plain"]
        assert session.tensors.read(good).implementation == "c10::TensorImpl"
        for address in (0, 1, good + 8, good - 8, session.dispatcher.address, 1 << 60, (1 << 64) - 8):
            with pytest.raises((BadData, MemoryFault)):
                session.tensors.read(address)


def test_keysets_and_arguments_by_address(inferior: Start, plain_look: Look) -> None:
    process = inferior("dispatch-tensors")
    tensors = process.truth["tensors"]
    document = plain_look(process, "dispatch-keyset", f"tensor:{tensors['meta']['address']}")
    assert document["keyset"]["bits"] == tensors["meta"]["bits"]
    assert document["keyset"]["key"] == "AutogradMeta"
    arguments = f"tensor:{tensors['sparse']['address']};@{tensors['grad']['address']};"
    lookup = plain_look(process, "dispatch-lookup", "aten::mm", "--args", arguments)["lookup"]
    first, second, none = lookup["call"]["arguments"]
    assert (first["tensor"], first["keyset"]["bits"]) == ("f32[3, 3] SparseCPU", tensors["sparse"]["bits"])
    assert (second["tensor"], second["keyset"]["bits"]) == ("f32[2, 3] cpu", tensors["grad"]["bits"])
    assert (none["tensor"], none["keyset"]["keys"]) == ("no tensor", [])
    assert [link["key"] for link in lookup["chain"]] == ["AutogradCPU", "SparseCPU"]


@pytest.mark.parametrize("debugger", ["gdb", "none"])
def test_registers_and_memory_hold_keysets(inferior: Start, debugger: str) -> None:
    process = inferior("dispatch-tensors")
    meta = process.truth["tensors"]["meta"]
    with ProcTarget(process.pid) as target:
        offset = Session(target).layout.struct("c10::TensorImpl").field("key_set_").offset

    def bits(place: str) -> str:
        return str(process.dispatch("dispatch-keyset", place, debugger=debugger).document["keyset"]["bits"])

    assert bits(f"*{int(meta['address'], 16) + offset:#x}") == meta["bits"]
    stack, word = bits("$rsp"), bits("*$rsp+8")
    assert bits("*$rsp+08") == word, "ten is 010, as people write it"
    assert bits(f"*{int(stack, 16) + 8:#x}") == word


def test_keysets_operators_and_tensors_are_those_that_were_passed() -> None:
    """At least 98 % proven and none wrong, on 40 operators stopped in their kernels."""
    result = keyset_truth.compare()
    counts, arguments = result["counts"], result["arguments"]
    assert (counts["wrong"], counts["missed"], arguments["wrong"]) == (0, 0, 0), result
    assert counts["stops"] >= 80, result
    assert counts["steps"] >= 120, result
    assert counts["proven"] >= 0.98 * counts["steps"], result
    assert arguments["tensors"] >= 150, result
    assert arguments["lists"] >= 2, result
    assert arguments["found"] >= 0.95 * arguments["tensors"], result
