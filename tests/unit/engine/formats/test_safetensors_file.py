"""safetensors files: what the format asks for, and that a file is whole or not there."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdbext.errors import BadData, TargetError
from gdbext.tools.tensor.tensor_files import StoredTensor, write

FLOATS = struct.pack("<6f", *range(6))


def test_a_file_as_the_format_has_it(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = [
        StoredTensor("a", "float32", (2, 3), 24, [FLOATS[:8], FLOATS[8:]]),
        StoredTensor("b", "bool", (), 1, [b"\1"]),
    ]
    write(str(path), tensors, {"dtype": "float32"})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    found = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert found["__metadata__"] == {"dtype": "float32"}
    assert found["a"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert found["b"] == {"dtype": "BOOL", "shape": [], "data_offsets": [24, 25]}
    assert data[8 + length :] == FLOATS + b"\1"
    assert [each.name for each in tmp_path.iterdir()] == ["x.safetensors"]


def _failing() -> Iterator[bytes]:
    yield FLOATS[:8]
    raise BadData("torn")


@pytest.mark.parametrize(
    ("tensor", "error", "said"),
    [
        (StoredTensor("a", "float32", (6,), 24, _failing()), BadData, "torn"),
        (StoredTensor("a", "float32", (6,), 24, [FLOATS[:8]]), TargetError, "8 bytes instead of 24"),
        (StoredTensor("a", "float32", (1 << 56,), 1 << 58, []), TargetError, r"x would have 2\d{17} .* room for \d+"),
    ],
)
def test_a_fault_leaves_what_was_there(tmp_path: Path, tensor: StoredTensor, error: Any, said: str) -> None:
    (tmp_path / "x").write_bytes(b"before")
    with pytest.raises(error, match=said):
        write(str(tmp_path / "x"), [tensor], {})
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("x", b"before")]
