"""Elements, pieces, slices and statistics of tensors in made-up memory; numpy gives the same."""

from __future__ import annotations

import math
import random
import statistics
import struct
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdbext.errors import UsageError
from gdbext.tools.tensor import contents as contents_module
from gdbext.tools.tensor import elements
from gdbext.tools.tensor.contents import Contents, Geometry, NothingToRead
from gdbext.tools.tensor.elements import ElementType, dimensions_of, element_type, pieces
from gdbext.tools.tensor.statistics import collector_for, import_numpy
from gdbext.tools.tensor.tensor_files import CELLS, read_slice
from gdbext.torch.values.value_text import Quantization, Statistics


def element(dtype: str, size: int) -> ElementType:
    found = element_type(dtype, size)
    assert isinstance(found, ElementType)
    return found


def decoded(dtype: str, size: int, raw: bytes) -> list[object]:
    return list(element(dtype, size).decode(raw))


@pytest.mark.parametrize(
    ("dtype", "values", "nans"),
    [
        ("float8_e4m3fn", {0x7E: 448.0, 0x01: 2.0**-9, 0x80: -0.0}, {0x7F, 0xFF}),
        ("float8_e5m2", {0x7B: 57344.0, 0x7C: math.inf, 0xFC: -math.inf}, {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}),
        ("float8_e4m3fnuz", {0x7F: 240.0}, {0x80}),
        ("float8_e5m2fnuz", {0x7F: 57344.0, 0x01: 2.0**-17}, {0x80}),
        ("float8_e8m0fnu", {0: 2.0**-127, 0xFE: 2.0**127}, {0xFF}),
    ],
)
def test_codes_of_small_floats(dtype: str, values: dict[int, float], nans: set[int]) -> None:
    """The largest and smallest numbers as the Open Compute Project's and ONNX's tables give them."""
    assert decoded(dtype, 1, bytes(values)) == [*values.values()]
    assert {code for code, value in enumerate(elements.code_values(dtype)) if value != value} == nans


def test_other_elements() -> None:
    halves = b"".join(struct.pack("<f", value)[2:] for value in (1.0, -2.5, math.inf))
    assert decoded("bfloat16", 2, halves) == [1.0, -2.5, math.inf]
    assert decoded("float16", 2, struct.pack("<2e", 0.5, -7)) == [0.5, -7.0]
    assert decoded("complex32", 4, struct.pack("<2e", 1, -2)) == [1 - 2j]
    assert decoded("complex64", 8, struct.pack("<4f", 1, 2, 3, 4)) == [1 + 2j, 3 + 4j]
    assert decoded("float4_e2m1fn_x2", 1, b"\x2f\x81") == [-6.0, 1.0, 0.5, -0.0]
    assert decoded("quint4x2", 1, b"\x2f") == [15, 2]
    assert decoded("quint2x4", 1, b"\xe4") == [0, 1, 2, 3]
    assert element_type("float6_e3m2", 1) is None


BASE = 0x1000
SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), max_size=4)


def places_of(sizes: list[int], strides: list[int]) -> list[int]:
    indices = product(*(range(size) for size in sizes))
    return [sum(index * stride for index, stride in zip(each, strides)) for each in indices]


@given(SHAPES, st.integers(1, 200))
def test_pieces_in_row_major_order_and_in_that_of_memory(shape: list[tuple[int, int]], chunk: int) -> None:
    sizes, strides = [size for size, _ in shape], [stride for _, stride in shape]
    wanted = places_of(sizes, strides)
    parts = pieces(dimensions_of(sizes, strides), 1, chunk)
    assert [piece.offset + offset for piece in parts for offset in piece.offsets()] == wanted
    dimensions, repeated = elements.in_memory_order(dimensions_of(sizes, strides))
    found = []
    for piece in pieces(dimensions, 1, chunk):
        for number, offset in enumerate(piece.offsets()):
            found.append(piece.offset + offset)
            assert wanted[piece.position_of(number)] == piece.offset + offset
    assert sorted(found * repeated) == sorted(wanted)


@given(SHAPES, st.integers(1, 200), st.integers(1, 16))
def test_no_piece_reads_more_than_the_limit(shape: list[tuple[int, int]], chunk: int, width: int) -> None:
    dimensions = dimensions_of([size for size, _ in shape], [stride for _, stride in shape])
    assert all(piece.elements == 1 or piece.span * width <= chunk for piece in pieces(dimensions, width, chunk))


def test_dimensions_of_a_contiguous_tensor_are_one_and_far_elements_are_read_alone() -> None:
    assert dimensions_of([4, 1, 3, 5], [15, 7, 5, 1]) == (elements.Dimension(60, 1, 1),)
    column = dimensions_of([1000], [100_000])
    assert [piece.span for piece in pieces(column, 4, 1 << 22)] == [1] * 1000
    assert elements.span_of(column) == 99_900_001


def collected(dtype: str, numbers: Sequence[complex], sizes: Sequence[int] = (), repeated: int = 1) -> Statistics:
    collector, at = collector_for(element(dtype, 8)), 0
    for size in (*sizes, len(numbers)):
        if part := list(numbers[at : at + size]):
            collector.add(part, lambda number, at=at: number + at, repeated)  # type: ignore[misc]
        at += size
    return collector.result(lambda position: (position,))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60), st.lists(st.integers(1, 9), max_size=5))
def test_floats_in_pieces(numbers: list[float], sizes: list[int]) -> None:
    found = collected("float64", numbers, sizes)
    assert (found.numel, found.min, found.max) == (len(numbers), min(numbers), max(numbers))
    assert found.mean == pytest.approx(statistics.fmean(numbers), rel=1e-12, abs=1e-9)
    assert found.std == pytest.approx(statistics.stdev(numbers), rel=1e-9, abs=1e-9)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=2, max_size=60), st.lists(st.integers(1, 9)))
def test_integers_are_exact(numbers: list[int], sizes: list[int]) -> None:
    found = collected("int64", numbers, sizes)
    assert (found.min, found.max, found.zeros) == (min(numbers), max(numbers), numbers.count(0))
    assert found.mean == sum(numbers) / len(numbers)
    assert found.std == pytest.approx(statistics.stdev(numbers), rel=1e-12)


def test_nans_are_counted_and_left_out() -> None:
    found = collected("float32", [1.0, math.nan, 3.0, math.nan], [2])
    assert (found.nan, found.first_nan, found.min, found.max, found.mean) == (2, (1,), 1.0, 3.0, 2.0)
    assert found.std == pytest.approx(math.sqrt(2))
    none = collected("float32", [math.nan] * 3)
    assert (none.numel, none.nan, none.min, none.mean, none.std) == (3, 3, None, None, None)


def test_infinities_take_part_but_not_in_the_range_of_the_finite_numbers() -> None:
    """A histogram is made of it, with infinities among the numbers, too."""
    found = collected("float32", [1.0, math.inf, 2.0])
    assert (found.inf, found.first_inf, found.max, found.mean) == (1, (1,), math.inf, math.inf)
    assert found.std is not None
    assert math.isnan(found.std)
    both = collected("float32", [math.inf, 3.0, -math.inf, -1.5, 7.0], [2, 2])
    assert (both.min, both.max, both.finite) == (-math.inf, math.inf, (-1.5, 7.0))
    assert math.isnan(both.mean or 0)
    assert collected("float32", [math.inf, math.nan]).finite is None
    assert collected("int32", [4, -2]).finite == (-2, 4)


def test_complex_numbers_have_no_order() -> None:
    numbers = [1 + 2j, 3 - 1j, 0j]
    found = collected("complex128", numbers)
    assert (found.min, found.max, found.zeros) == (None, None, 1)
    assert found.mean == pytest.approx(sum(numbers) / 3)
    variance = sum(abs(number - sum(numbers) / 3) ** 2 for number in numbers) / 2
    assert found.std == pytest.approx(math.sqrt(variance))


def test_an_expanded_element_counts_as_often_as_it_is_there_and_subnormal_numbers_are_counted() -> None:
    found = collected("float64", [1.0, 4.0], repeated=3)
    assert (found.numel, found.mean) == (6, 2.5)
    assert found.std == pytest.approx(statistics.stdev([1, 4] * 3))
    assert collected("float64", [1.7e308, 1.7e308]).mean == math.inf, "no double holds the sum"
    tiny = 2.0**-130
    assert collected("float32", [0.0, 1.0, tiny, -tiny, 2.0**-126, math.nan]).subnormals == 2
    assert collected("float32", [tiny], repeated=3).subnormals == 3
    others = (collected("float64", [0.0, tiny, 5e-324]), collected("int32", [0, 1]))
    assert [each.subnormals for each in others] == [1, 0]


def contents(
    dtype: str, raw: bytes, sizes: tuple[int, ...], strides: tuple[int, ...], size: int, **options: Any
) -> Contents:
    def read(address: int, length: int) -> bytes:
        found = raw[address - BASE : address - BASE + length]
        assert len(found) == length, "read outside of the storage"
        return found

    return Contents(read, Geometry(BASE, sizes, strides, element(dtype, size)), **options)


def contiguous(dtype: str, raw: bytes, sizes: tuple[int, ...], size: int, **options: Any) -> Contents:
    strides = tuple(math.prod(sizes[at + 1 :]) for at in range(len(sizes)))
    return contents(dtype, raw, sizes, strides, size, **options)


def test_a_transposed_tensor_is_shown_by_its_own_order() -> None:
    raw = struct.pack("<6f", 0, 1, 2, 3, math.nan, 5)
    found = contents("float32", raw, (3, 2), (1, 3), 4)
    assert repr(found.values()) == "[[0.0, 3.0], [1.0, nan], [2.0, 5.0]]"
    statistics = found.statistics()
    assert (statistics.nan, statistics.first_nan, statistics.max) == (1, (1, 1), 5.0)
    assert b"".join(found.stored()) == struct.pack("<6f", 0, 3, 1, math.nan, 2, 5)
    zeros = contents("float32", bytes(16), (2, 2), (2, 1), 4)
    assert (zeros.values_if_few(4), zeros.values_if_few(3)) == ([[0, 0], [0, 0]], None)
    assert contents("float32", b"", (3, 0, 1 << 40), (1, 1, 1), 4).values_if_few(4) == [[], [], []]
    assert contents("float32", b"", (1 << 40, 0), (1, 1), 4).values_if_few(4) is None


def test_conjugate_and_negative_bits_and_quantised_numbers() -> None:
    raw = struct.pack("<4f", 1, 2, 3, -4)
    for conjugate, negative, wanted in [(True, False, [1 - 2j, 3 + 4j]), (False, True, [-1 - 2j, -3 + 4j])]:
        found = contents("complex64", raw, (2,), (1,), 8, conjugate=conjugate, negative=negative)
        assert found.values() == wanted
        parts = [part for number in wanted for part in (number.real, number.imag)]
        assert b"".join(found.stored()) == struct.pack("<4f", *parts)
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
    for low, high in ((0.0, 5e-324), (1e300, math.nextafter(1e300, 2e300)), (0.0, 1e-310)):  # cannot be divided
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
    for field in ("numel", "min", "max", "nan", "inf", "zeros", "subnormals", "first_nan", "first_inf"):
        assert getattr(plain, field) == getattr(fast, field), field
    assert fast.mean == pytest.approx(plain.mean, rel=1e-12, nan_ok=True)
    assert fast.std == pytest.approx(plain.std, rel=1e-12, nan_ok=True)


def test_slices_and_what_is_large_is_thinned() -> None:
    floats = contiguous("float32", struct.pack("<24f", *range(24)), (2, 2, 2, 3), 4)
    assert read_slice(floats).values == ((0, 1, 2), (3, 4, 5))
    other = read_slice(floats, (1, -2))
    assert (other.leading, other.values) == ((1, 0), ((12, 13, 14), (15, 16, 17)))
    for index in ((2, 0), (0, -3), (0,)):
        with pytest.raises(UsageError, match="there is no slice"):
            read_slice(floats, index)
    pairs = read_slice(contiguous("float4_e2m1fn_x2", bytes([0x21, 0x8F]), (2,), 1))
    assert (pairs.columns, pairs.column_step, pairs.values) == (4, 1, ((0.5, 1.0, -6.0, -0.0),))
    many = read_slice(contiguous("float4_e2m1fn_x2", bytes([0x21]) * 2048, (2048,), 1))
    assert (many.columns, many.column_step, many.values) == (4096, 4, ((0.5,) * 1024,))
    assert read_slice(contiguous("int8", bytes([1, 255]), (2,), 1)).values == ((1, -1),)
    assert read_slice(contiguous("bool", b"\1", (), 1)).values == ((1.0,),)
    complex_numbers = read_slice(contiguous("complex64", struct.pack("<4f", 3, 4, 0, -1), (1, 2), 8))
    assert (complex_numbers.values, complex_numbers.is_magnitude) == (((5.0, 1.0),), True)
    with pytest.raises(NothingToRead):
        read_slice(contiguous("int8", b"", (0, 3), 1))
    height, width = 2 * CELLS + 1, CELLS
    raw = b"".join(struct.pack("<h", number % 30000) for number in range(height * width))
    found = read_slice(contiguous("int16", raw, (height, width), 2))
    assert (found.rows, found.columns, found.row_step, found.column_step) == (height, width, 3, 1)
    assert len(found.values) == -(-height // 3)
    assert found.values[1][5] == (3 * width + 5) % 30000


def test_channels_keep_their_scale() -> None:
    channels = (((1.0, 2.0), (0, 6), (-6, -4)), ((1.0,), (0,), (1, 2)), ((1.0, 4.0), (0, 0), (1, 8)))
    for axis, (scales, zeros, wanted) in enumerate(channels):
        quantization = Quantization("c", scales, zeros, axis)
        tensor = contiguous("quint8", bytes([1, 2, 3, 4]), (2, 1, 2), 1, quantization=quantization)
        assert read_slice(tensor, (int(axis == 0),)).values == (wanted,)
