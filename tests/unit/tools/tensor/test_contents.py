"""The elements and slices of tensors in made-up memory; where numpy is installed, its way gives the same."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import pytest

from gdbext.errors import UsageError
from gdbext.tools.tensor import contents as contents_module
from gdbext.tools.tensor.contents import Contents, Geometry, NothingToRead
from gdbext.tools.tensor.elements import ElementType, element_type
from gdbext.tools.tensor.numpy_statistics import import_numpy
from gdbext.tools.tensor.tensor_files import CELLS, read_slice
from gdbext.torch.values.value_text import Quantization

BASE = 0x1000


def contents(
    dtype: str, raw: bytes, sizes: tuple[int, ...], strides: tuple[int, ...], size: int, **options: Any
) -> Contents:
    element = element_type(dtype, size)
    assert isinstance(element, ElementType)

    def read(address: int, length: int) -> bytes:
        found = raw[address - BASE : address - BASE + length]
        assert len(found) == length, "read outside of the storage"
        return found

    return Contents(read, Geometry(BASE, sizes, strides, element), **options)


def rows(dtype: str, raw: bytes, sizes: tuple[int, ...], size: int, **options: Any) -> Contents:
    """A contiguous tensor."""
    strides = tuple(math.prod(sizes[at + 1 :]) for at in range(len(sizes)))
    return contents(dtype, raw, sizes, strides, size, **options)


def test_a_transposed_tensor_is_shown_by_its_own_order() -> None:
    raw = struct.pack("<6f", 0, 1, 2, 3, math.nan, 5)
    found = contents("float32", raw, (3, 2), (1, 3), 4)
    assert repr(found.values()) == "[[0.0, 3.0], [1.0, nan], [2.0, 5.0]]"
    statistics = found.statistics()
    assert (statistics.nan, statistics.first_nan, statistics.maximum) == (1, (1, 1), 5.0)
    assert b"".join(found.stored()) == struct.pack("<6f", 0, 3, 1, math.nan, 2, 5)


def test_values_that_are_few() -> None:
    assert contents("float32", bytes(16), (2, 2), (2, 1), 4).values_if_few(4) == [[0, 0], [0, 0]]
    assert contents("float32", bytes(16), (2, 2), (2, 1), 4).values_if_few(3) is None
    assert contents("float32", b"", (3, 0, 1 << 40), (1, 1, 1), 4).values_if_few(4) == [[], [], []]
    assert contents("float32", b"", (1 << 40, 0), (1, 1), 4).values_if_few(4) is None


def test_conjugate_and_negative_bits() -> None:
    raw = struct.pack("<4f", 1, 2, 3, -4)
    for conjugate, negative, wanted in [(True, False, [1 - 2j, 3 + 4j]), (False, True, [-1 - 2j, -3 + 4j])]:
        found = contents("complex64", raw, (2,), (1,), 8, conjugate=conjugate, negative=negative)
        assert found.values() == wanted
        assert struct.unpack("<4f", b"".join(found.stored())) == tuple(
            part for number in wanted for part in (number.real, number.imag)
        )


def test_quantised_numbers() -> None:
    whole = contents("qint8", bytes([0, 10, 246]), (3,), (1,), 1, quantization=Quantization("a", (0.5,), (2,), None))
    assert whole.values() == [-1.0, 4.0, -6.0]
    channels = Quantization("c", (0.5, 2.0), (0, 1), 1)
    found = contents("quint8", bytes([1, 2, 3, 4]), (2, 2), (2, 1), 1, quantization=channels)
    assert found.values() == [[0.5, 2.0], [1.5, 6.0]]
    packed = contents("quint4x2", b"\x21\x03", (3,), (1,), 1, quantization=Quantization("a", (1.0,), (0,), None))
    assert packed.values() == [1.0, 2.0, 3.0]


def test_a_histogram_has_every_finite_number_in_it() -> None:
    raw = struct.pack("<6f", 0, 1, 2, 3, math.nan, math.inf)
    found = contents("float32", raw, (6,), (1,), 4).histogram(0.0, 3.0)
    assert found is not None
    assert (found.total, found.counts[0], found.counts[-1]) == (4, 1, 1)
    assert contents("float32", raw, (6,), (1,), 4).histogram(0.0, math.inf) is None


@pytest.mark.parametrize(("low", "high"), [(0.0, 5e-324), (1e300, math.nextafter(1e300, 2e300)), (0.0, 1e-310)])
def test_a_range_that_cannot_be_divided_has_no_histogram(low: float, high: float) -> None:
    assert contents("float64", struct.pack("<2d", low, high), (2,), (1,), 8).histogram(low, high) is None


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "bool", "complex64"])
@pytest.mark.parametrize("strides", [(1, 300), (0, 1), (1000, 2)])
def test_numpy_gives_the_same(dtype: str, strides: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = import_numpy()
    if numpy is None:
        pytest.skip("numpy is not installed for this Python")
    monkeypatch.setattr(contents_module, "_NUMPY_FROM", 1)
    size = {"float32": 4, "float64": 8, "int64": 8, "int8": 1, "bool": 1, "complex64": 8}.get(dtype, 2)
    raw = random.Random(dtype).randbytes(size * 400_000)
    if dtype == "float64":  # of random bits the sum of squares is beyond any double
        raw = struct.pack("<200001d", *range(-100_000, 100_000), math.nan) * 2
    sizes = (60, 50)
    plain = contents(dtype, raw, sizes, strides, size).statistics()
    fast = contents(dtype, raw, sizes, strides, size, numpy=lambda: numpy).statistics()
    for field in ("numel", "minimum", "maximum", "nan", "inf", "zeros", "subnormals", "first_nan", "first_inf"):
        assert getattr(plain, field) == getattr(fast, field), field
    assert fast.mean == pytest.approx(plain.mean, rel=1e-12, nan_ok=True)
    assert fast.std == pytest.approx(plain.std, rel=1e-12, nan_ok=True)


def test_the_first_slice_and_others() -> None:
    floats = rows("float32", struct.pack("<24f", *range(24)), (2, 2, 2, 3), 4)
    assert read_slice(floats).values == ((0, 1, 2), (3, 4, 5))
    other = read_slice(floats, (1, -2))
    assert (other.leading, other.values) == ((1, 0), ((12, 13, 14), (15, 16, 17)))
    for index in ((2, 0), (0, -3), (0,)):
        with pytest.raises(UsageError, match="there is no slice"):
            read_slice(floats, index)


def test_elements_that_are_two_numbers() -> None:
    pairs = read_slice(rows("float4_e2m1fn_x2", bytes([0x21, 0x8F]), (2,), 1))
    assert (pairs.columns, pairs.column_step, pairs.values) == (4, 1, ((0.5, 1.0, -6.0, -0.0),))
    many = read_slice(rows("float4_e2m1fn_x2", bytes([0x21]) * 2048, (2048,), 1))
    assert (many.columns, many.column_step, many.values) == (4096, 4, ((0.5,) * 1024,))


def test_fewer_dimensions_are_one_row_and_complex_numbers_absolute_values() -> None:
    assert read_slice(rows("int8", bytes([1, 255]), (2,), 1)).values == ((1, -1),)
    assert read_slice(rows("bool", b"\1", (), 1)).values == ((1.0,),)
    complex_numbers = read_slice(rows("complex64", struct.pack("<4f", 3, 4, 0, -1), (1, 2), 8))
    assert (complex_numbers.values, complex_numbers.is_magnitude) == (((5.0, 1.0),), True)
    with pytest.raises(NothingToRead):
        read_slice(rows("int8", b"", (0, 3), 1))


def test_what_is_large_is_thinned() -> None:
    height, width = 2 * CELLS + 1, CELLS
    raw = b"".join(struct.pack("<h", number % 30000) for number in range(height * width))
    found = read_slice(rows("int16", raw, (height, width), 2))
    assert (found.rows, found.columns, found.row_step, found.column_step) == (height, width, 3, 1)
    assert len(found.values) == -(-height // 3)
    assert found.values[1][5] == (3 * width + 5) % 30000


@pytest.mark.parametrize(("axis", "wanted"), [(0, ((-6, -4),)), (1, ((1, 2),)), (2, ((1, 8),))])
def test_channels_keep_their_scale(axis: int, wanted: tuple[tuple[float, ...], ...]) -> None:
    scales = {0: (1.0, 2.0), 1: (1.0,), 2: (1.0, 4.0)}[axis]
    zeros = {0: (0, 6), 1: (0,), 2: (0, 0)}[axis]
    channels = Quantization("c", scales, zeros, axis)
    index = (1,) if axis == 0 else (0,)
    raw = bytes([1, 2, 3, 4])
    assert read_slice(rows("quint8", raw, (2, 1, 2), 1, quantization=channels), index).values == wanted
