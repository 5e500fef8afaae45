"""Tensors read from the memory of another process, against what that process says of them."""

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


def test_every_kind_of_tensor(inferior: GetInferior) -> None:
    process = inferior("dispatch-tensors")
    target = ProcTarget(process.pid)
    try:
        tensors = Session(target).tensors
        for name, truth in process.truth["tensors"].items():
            facts = tensors.read(int(truth["address"], 16))
            assert facts.key_set == int(truth["bits"], 16), name
            assert tensors.key_set(facts.address) == facts.key_set
            assert (facts.dtype, facts.device) == (truth["dtype"], truth["device"]), name
            if facts.sizes is not None and truth["sizes"] is not None:
                assert list(facts.sizes) == truth["sizes"], name
            if truth["strides"] is not None:
                assert facts.sizes is not None, name
                assert facts.strides is not None
                assert list(facts.strides) == truth["strides"], name
        for name, text in process.truth["short"].items():
            assert tensors.read(int(process.truth["tensors"][name]["address"], 16)).short == text
        assert tensors.read(int(process.truth["tensors"]["plain"]["address"], 16)).implementation == "c10::TensorImpl"
    finally:
        target.close()


def test_what_is_no_tensor_is_refused(inferior: GetInferior) -> None:
    process = inferior("dispatch-tensors")
    target = ProcTarget(process.pid)
    try:
        session = Session(target)
        good = int(process.truth["tensors"]["plain"]["address"], 16)
        candidates = [0, 1, good + 8, good + 16, good - 8, session.dispatcher.address, 1 << 60, (1 << 64) - 8]
        for address in candidates:
            with pytest.raises((BadData, MemoryFault)):
                session.tensors.read(address)
    finally:
        target.close()


def test_keysets_and_arguments_by_address(inferior: GetInferior, look: Look) -> None:
    process = inferior("dispatch-tensors")
    tensors = process.truth["tensors"]
    document = look(process, "dispatch-keyset", f"tensor:{tensors['meta']['address']}")
    assert document["keyset"]["bits"] == tensors["meta"]["bits"]
    assert document["keyset"]["key"] == "AutogradMeta"
    arguments = f"tensor:{tensors['sparse']['address']};@{tensors['grad']['address']};"
    lookup = look(process, "dispatch-lookup", "aten::mm", "--args", arguments)["lookup"]
    first, second, none = lookup["call"]["arguments"]
    assert (first["tensor"], first["keyset"]["bits"]) == ("f32[3, 3] SparseCPU", tensors["sparse"]["bits"])
    assert (second["tensor"], second["keyset"]["bits"]) == ("f32[2, 3] cpu", tensors["grad"]["bits"])
    assert (none["tensor"], none["keyset"]["keys"]) == ("no tensor", [])
    assert [link["key"] for link in lookup["chain"]] == ["AutogradCPU", "SparseCPU"]


def test_registers_and_memory_hold_keysets(inferior: GetInferior, look: Look) -> None:
    process = inferior("dispatch-tensors")
    address = int(process.truth["tensors"]["meta"]["address"], 16)
    target = ProcTarget(process.pid)
    try:
        offset = Session(target).layout.struct("c10::TensorImpl").field("key_set_").offset
    finally:
        target.close()
    document = look(process, "dispatch-keyset", f"*{address + offset:#x}")
    assert document["keyset"]["bits"] == process.truth["tensors"]["meta"]["bits"]
    stack = look(process, "dispatch-keyset", "$rsp")["keyset"]["bits"]
    word = look(process, "dispatch-keyset", "*$rsp+8")["keyset"]["bits"]
    assert look(process, "dispatch-keyset", "*$rsp+08")["keyset"]["bits"] == word, "ten is 010, as people write it"
    assert look(process, "dispatch-keyset", f"*{int(stack, 16) + 8:#x}")["keyset"]["bits"] == word
