"""Saved tensors: members of the header, and what a SavedVariable in made-up memory says."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.layouts import store
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import BadData
from gdbext.tools.autograd.autograd_section import SavedTensor
from gdbext.tools.autograd.hooks import SavedTensorReader
from gdbext.torch.measure.header_wants import members
from support.fakes.fake_target import FakeTarget

NODE, TENSOR, UNDEFINED = 0x10000, 0x7000, 0x8000
FIELDS = (("data_", 0, 8), ("saved_version_", 8, 4), ("was_default_constructed_", 16, 1), ("saved_original_", 17, 1))
SHAPE = StructLayout(
    "torch::autograd::SavedVariable", 48, {field[0]: FieldLayout(*field) for field in (*FIELDS, ("hooks_", 24, 8))}
)


def saved(data: int = 0, version: int = 0, default: int = 0, original: int = 1, hooks: int = 0) -> bytes:
    return struct.pack("<QIIBB6xQ16x", data, version, 0, default, original, hooks)


def read(raw: bytes, name: str = "self_") -> tuple[SavedTensor, ...]:
    return reader(raw, name).of(NODE) or ()


def reader(raw: bytes, name: str = "self_", kind: str = "MmBackward0") -> SavedTensorReader:
    memory = Memory(FakeTarget({NODE: raw.ljust(4096, b"\0")}))
    layout: Any = SimpleNamespace(struct=lambda _: SHAPE)
    space = Space(memory, layout)
    names: dict[str, Any] = {"name": lambda _: kind, "python_object": lambda node: node + 8}
    nodes: Any = SimpleNamespace(memory=memory, layout=layout, space=space, **names)

    def tensor(address: int) -> Any:
        implementation = "c10::UndefinedTensorImpl" if address == UNDEFINED else "c10::TensorImpl"
        return SimpleNamespace(address=address, short="f32[2] cpu", implementation=implementation)

    tensors: Any = SimpleNamespace(read=tensor)
    fields: Any = SimpleNamespace(version=lambda _: 3)
    members = {"MmBackward0": {name: 0}, "THPFunction": {"saved_variables[]": 56}}
    return SavedTensorReader(nodes, members, tensors, fields)


@pytest.mark.parametrize(
    ("raw", "expected", "stale"),
    [
        (saved(TENSOR, 3), SavedTensor("self", "f32[2] cpu", 3, 3), False),
        (saved(TENSOR, 1), SavedTensor("self", "f32[2] cpu", 1, 3), True),
        (saved(UNDEFINED, 1), SavedTensor("self", "released", None, None), False),
        (saved(default=1), SavedTensor("self", "none", None, None), False),
        (saved(hooks=0x99), SavedTensor("self", "packed by saved-tensor hooks", None, None), False),
    ],
)
def test_what_a_node_has_saved(raw: bytes, expected: SavedTensor, stale: bool) -> None:
    assert read(raw) == (expected,)
    assert expected.is_stale is stale
    assert reader(raw).stale(NODE) == ((expected,) if stale else ())
    with pytest.raises(BadData):
        read(saved(TENSOR, default=7))


def test_a_list() -> None:
    begin = NODE + 64
    raw = struct.pack("<QQQ", begin, begin + 96, begin + 96).ljust(64, b"\0") + saved(TENSOR, 3) + saved(TENSOR, 2)
    assert [(each.name, each.is_stale) for each in read(raw, "tensors_[]")] == [
        ("tensors[0]", False),
        ("tensors[1]", True),
    ]


def test_what_a_torch_autograd_function_saves_is_in_its_python_object() -> None:
    begin = NODE + 128
    raw = bytes(64) + struct.pack("<QQQ", begin, begin + 48, begin + 48).ljust(64, b"\0") + saved(TENSOR, 2)
    expected = SavedTensor("saved_tensors[0]", "f32[2] cpu", 2, 3)
    assert reader(raw, kind="torch::autograd::PyNode").of(NODE) == (expected,)
    assert reader(raw, kind="torch::autograd::PyNode").stale(NODE) == (expected,)


def test_members_of_a_header() -> None:
    header = """
struct TORCH_API CatBackward0 : public TraceableFunction {
  int64_t dim = 0;
  SavedVariable self_;
  std::vector<SavedVariable> tensors_;
};
"""
    assert members(header) == {
        "CatBackward0.self_": "__builtin_offsetof(torch::autograd::generated::CatBackward0, self_)",
        "CatBackward0.tensors_[]": "__builtin_offsetof(torch::autograd::generated::CatBackward0, tensors_)",
    }


def test_members_that_are_shipped() -> None:
    found = store.saved_members("2.13.0+cu130")
    assert len(found) > 400
    assert set(found["MmBackward0"]) == {"self_", "mat2_"}
    assert store.saved_members("2.4.1") == {}
    # DivBackward2 has an optional std::string before one of its saved tensors
    new, old = (store.saved_members("2.6.0", cxx11=cxx11)["DivBackward2"] for cxx11 in (True, False))
    assert new["self_"] - old["self_"] == 24
