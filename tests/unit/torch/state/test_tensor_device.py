"""The device of a tensor, by the layouts of an old and a new release."""

from __future__ import annotations

from typing import cast

import pytest

from gdbext.engine.layouts import store
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.torch.state.tensor import TensorReader
from gdbext.torch.values.key_names import KeyNames
from support.fakes.fake_target import FakeTarget

IMPLEMENTATION = 0x100000
CUDA = 1


@pytest.mark.parametrize("release", ["2.0.1+cu117", "2.13.0+cpu"])
def test_device(release: str) -> None:
    """c10::optional of torch before 2.2 has its flag in front of the device, std::optional behind it."""
    layout = store.load(f"{store.DATA}/torch-{release}-cxx11.json")
    in_front = "init_" in layout.struct("optional<c10::Device>").fields
    page = bytearray(b"\xee" * 4096)
    at = layout.struct("c10::TensorImpl").field("device_opt_").offset
    found = []
    for kind, index, engaged in ((CUDA, 3, 1), (0, 0xFF, 1), (CUDA, 3, 0)):
        page[at : at + 3] = bytes([engaged, kind, index] if in_front else [kind, index, engaged])
        memory = Memory(FakeTarget({IMPLEMENTATION: bytes(page)}))
        reader = TensorReader(memory, layout, cast(Symbolizer, None), cast(KeyNames, None))
        found.append(reader._device(IMPLEMENTATION))
    assert found == ["cuda:3", "cpu", None]
