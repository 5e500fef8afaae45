"""Summaries of C++ objects, on a recorded process: what debuggers show for types of PyTorch."""

from __future__ import annotations

import struct

import pytest

from gdbext.tools.tensor.cpp_object import SUMMARIZED_TYPES, CppObject, summarized_type
from gdbext.tools.tensor.cpp_summaries import TypeSummaries
from support.recorded.recordings import Replay

MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
KINDS = [f"{each.name}<long>" if each.is_template else each.name for each in SUMMARIZED_TYPES]


@pytest.fixture(scope="module")
def hung() -> Replay:
    return Replay("meta-mm")


@pytest.fixture(scope="module")
def summaries(hung: Replay) -> TypeSummaries:
    return TypeSummaries(hung.session)


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def text_of(summaries: TypeSummaries, kind: str, address: int, raw: bytes = b"", element: str = "long") -> str:
    found = summaries.of(CppObject(kind, address, raw, element, 8))
    assert found is not None
    return found.text


def test_names_of_types(summaries: TypeSummaries) -> None:
    assert summarized_type("c10::ArrayRef<long>") is not None
    assert summarized_type("c10::ArrayRef") is None
    assert summarized_type("at::Tensor<int>") is None
    assert summaries.of(CppObject("std::string", 0x1000)) is None


@pytest.mark.parametrize(
    ("kind", "raw", "text"),
    [
        ("c10::DispatchKeySet", words(0), "DispatchKeySet()"),
        ("c10::DispatchKey", b"\x00\x00", "Undefined"),
        ("c10::Device", b"\x01\x03", "cuda:3"),
        ("c10::Device", b"\x00\xff", "cpu"),
        ("caffe2::TypeMeta", b"\x0b\x00", "torch.bool"),
        ("c10::SymInt", words((1 << 64) - 5), "-5"),
        ("c10::SymInt", words(0x8000_0000_1234_5678), "a symbolic number"),
        ("c10::Storage", words(0), "no storage"),
        ("c10::intrusive_ptr<c10::StorageImpl, x>", words(0), "nullptr"),
        ("c10::KernelFunction", words(0, 0, 0, 0, 0), "no kernel"),
    ],
)
def test_values_in_registers(summaries: TypeSummaries, kind: str, raw: bytes, text: str) -> None:
    assert text_of(summaries, kind, 0, raw) == text


def test_keysets_and_an_operator(hung: Replay, summaries: TypeSummaries) -> None:
    bits = hung.session.dispatch_keys.parse("Meta,AutogradMeta")
    assert text_of(summaries, "c10::DispatchKeySet", 0, words(bits)) == "DispatchKeySet(Meta, AutogradMeta)"
    operator = hung.session.dispatcher.find_one("aten::mm")
    for kind in ("c10::OperatorHandle", "c10::TypedOperatorHandle<at::Tensor (at::Tensor const&)>"):
        found = summaries.of(CppObject(kind, 0, words(operator.address, 0)))
        assert found is not None
        assert found.text == "aten::mm"
        assert [(child.name, child.text) for child in found.children] == [("schema", MM)]


def test_parts_of_an_operator(hung: Replay, summaries: TypeSummaries) -> None:
    dispatcher = hung.session.dispatcher
    operator = dispatcher.find_one("aten::mm")
    assert text_of(summaries, "c10::FunctionSchema", dispatcher.schema_of(operator.address)) == MM
    index = dispatcher.keys.index_of_key("Meta")
    kernel = summaries.of(CppObject("c10::KernelFunction", dispatcher.table_entry(operator.address, index)))
    assert kernel is not None
    assert kernel.text == dispatcher.kernels.name(operator.kernel(index)).function
    assert [child.name for child in kernel.children][:2] == ["functor", "boxed"]


@pytest.mark.parametrize("pattern", [b"\x5a", b"\xff", b"\x01", b"\x00"])
def test_what_nobody_initialised_is_survived(summaries: TypeSummaries, pattern: bytes) -> None:
    for kind in KINDS:
        found = summaries.of(CppObject(kind, 0, 256 * pattern, "long", 8))
        assert found is not None
        assert len(found.children) <= 400
        if pattern == b"\x5a":  # a value of none of the types but a number
            assert found.text.startswith("<") or kind == "c10::SymInt", (kind, found.text)


def test_memory_that_cannot_be_read_and_more_elements_than_can_be_there(summaries: TypeSummaries) -> None:
    for kind in KINDS:
        assert text_of(summaries, kind, 0x10).startswith("<"), kind
    assert text_of(summaries, "c10::ArrayRef<long>", 0, words(0x10, 3)).startswith("<")


def test_elements_of_a_type_that_only_the_debugger_knows(hung: Replay, summaries: TypeSummaries) -> None:
    place = hung.session.dispatcher.find_one("aten::mm").address
    found = summaries.of(CppObject("c10::ArrayRef<user::Pair>", 0, words(place, 2), "user::Pair", 8))
    assert found is not None
    assert (found.text, found.shape) == ("2 elements", "array")
    assert [(child.name, child.type, child.address) for child in found.children] == [
        ("[0]", "user::Pair", place),
        ("[1]", "user::Pair", place + 8),
    ]
