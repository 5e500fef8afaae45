"""Keysets of tensors, registers and memory of another process, against what that process says of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.errors import BadData, MemoryFault
from support.programs.harness import Inferior
from support.programs.ways import Look

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

GetInferior = Callable[..., Inferior]


def test_keysets_of_tensors_and_what_is_none(inferior: GetInferior) -> None:
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


def test_keysets_and_arguments_by_address(inferior: GetInferior, plain_look: Look) -> None:
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
def test_registers_and_memory_hold_keysets(inferior: GetInferior, debugger: str) -> None:
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
