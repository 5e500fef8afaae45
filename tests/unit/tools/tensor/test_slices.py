"""Two-dimensional slices of tensors in made-up memory."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from gdbext.errors import UsageError
from gdbext.tools.tensor.contents import Contents, Geometry, NothingToRead
from gdbext.tools.tensor.elements import ElementType, element_type
from gdbext.tools.tensor.tensor_files import CELLS, read_slice
from gdbext.torch.values.value_text import Quantization

BASE = 0x1000


def contents(dtype: str, raw: bytes, sizes: tuple[int, ...], size: int, **options: Any) -> Contents:
    element = element_type(dtype, size)
    assert isinstance(element, ElementType)
    strides, step = [], 1
    for each in reversed(sizes):
        strides.append(step)
        step *= each
    geometry = Geometry(BASE, sizes, tuple(reversed(strides)), element)

    def read(address: int, length: int) -> bytes:
        found = raw[address - BASE : address - BASE + length]
        assert len(found) == length, "read outside of the storage"
        return found

    return Contents(read, geometry, **options)


def test_the_first_slice_and_others() -> None:
    floats = contents("float32", struct.pack("<24f", *range(24)), (2, 2, 2, 3), 4)
    assert read_slice(floats).values == ((0, 1, 2), (3, 4, 5))
    other = read_slice(floats, (1, -2))
    assert (other.leading, other.values) == ((1, 0), ((12, 13, 14), (15, 16, 17)))
    for index in ((2, 0), (0, -3), (0,)):
        with pytest.raises(UsageError, match="there is no slice"):
            read_slice(floats, index)


def test_elements_that_are_two_numbers() -> None:
    pairs = read_slice(contents("float4_e2m1fn_x2", bytes([0x21, 0x8F]), (2,), 1))
    assert (pairs.columns, pairs.column_step, pairs.values) == (4, 1, ((0.5, 1.0, -6.0, -0.0),))
    many = read_slice(contents("float4_e2m1fn_x2", bytes([0x21]) * 2048, (2048,), 1))
    assert (many.columns, many.column_step, many.values) == (4096, 4, ((0.5,) * 1024,))


def test_fewer_dimensions_are_one_row() -> None:
    assert read_slice(contents("int8", bytes([1, 255]), (2,), 1)).values == ((1, -1),)
    assert read_slice(contents("bool", b"\1", (), 1)).values == ((1.0,),)
    with pytest.raises(NothingToRead):
        read_slice(contents("int8", b"", (0, 3), 1))


def test_what_is_large_is_thinned() -> None:
    rows, columns = 2 * CELLS + 1, CELLS
    raw = b"".join(struct.pack("<h", number % 30000) for number in range(rows * columns))
    found = read_slice(contents("int16", raw, (rows, columns), 2))
    assert (found.rows, found.columns, found.row_step, found.column_step) == (rows, columns, 3, 1)
    assert len(found.values) == -(-rows // 3)
    assert found.values[1][5] == (3 * columns + 5) % 30000


def test_of_complex_numbers_the_absolute_values() -> None:
    found = read_slice(contents("complex64", struct.pack("<4f", 3, 4, 0, -1), (1, 2), 8))
    assert (found.values, found.is_magnitude) == (((5.0, 1.0),), True)


@pytest.mark.parametrize(("axis", "wanted"), [(0, ((-6, -4),)), (1, ((1, 2),)), (2, ((1, 8),))])
def test_channels_keep_their_scale(axis: int, wanted: tuple[tuple[float, ...], ...]) -> None:
    scales = {0: (1.0, 2.0), 1: (1.0,), 2: (1.0, 4.0)}[axis]
    zeros = {0: (0, 6), 1: (0,), 2: (0, 0)}[axis]
    channels = Quantization("c", scales, zeros, axis)
    index = (1,) if axis == 0 else (0,)
    raw = bytes([1, 2, 3, 4])
    assert read_slice(contents("quint8", raw, (2, 1, 2), 1, quantization=channels), index).values == wanted
