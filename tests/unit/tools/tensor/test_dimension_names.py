"""The names of dimensions, of versions that have named tensors (up to 2.12)."""

from __future__ import annotations

import struct
from typing import cast

import pytest

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.store import load, of_release
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData
from gdbext.tools.tensor.tensor_fields import TensorFields
from gdbext.torch.values.cpp_objects import ClassNames
from support.fakes.fake_target import FakeTarget

TENSOR, EXTRA, META, NAMES = 0x10000, 0x20000, 0x30000, 0x40000


def fields(layout: Layout, extra: int, meta: int, names: bytes) -> TensorFields:
    """A tensor that has its names there."""
    at = layout.struct("c10::TensorImpl").offset("extra_meta_")
    found = layout.struct("c10::ExtraMeta").fields.get("named_tensor_meta_")
    more = bytearray(256)
    if found is not None:
        struct.pack_into("<Q", more, found.offset, meta)
    regions = {
        TENSOR: bytes(at) + struct.pack("<Q", extra),
        EXTRA: bytes(more),
        META: bytes(8) + struct.pack("<3Q", NAMES, NAMES + len(names), NAMES + len(names)),
        NAMES: names,
    }
    memory = Memory(FakeTarget({start: raw.ljust(0x1000, b"\0") for start, raw in regions.items()}))
    return TensorFields(memory, layout, cast(ClassNames, None))


@pytest.fixture(scope="module")
def layout() -> Layout:
    return load(of_release("2.12.1")[0])


def test_names_and_wildcards(layout: Layout) -> None:
    names = struct.pack("<II", 0x1C000005, 0) + struct.pack("<II", 0, 1)
    assert fields(layout, EXTRA, META, names).dimension_names(TENSOR) == (0x1C000005, None)
    for extra, meta in ((0, META), (EXTRA, 0)):
        assert fields(layout, extra, meta, b"").dimension_names(TENSOR) is None
    with pytest.raises(BadData):  # more than dimensions can be
        fields(layout, EXTRA, META, bytes(8 * 65)).dimension_names(TENSOR)


def test_versions_that_have_none() -> None:
    assert fields(load(of_release("2.13.0")[0]), EXTRA, META, b"").dimension_names(TENSOR) is None
