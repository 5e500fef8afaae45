"""Statistics in pieces against those of Python's statistics module over everything at once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdbext.tools.tensor.elements import element_type
from gdbext.tools.tensor.statistics import collector_for
from gdbext.torch.values.value_text import Statistics

FLOATS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60)


def collected(dtype: str, numbers: Sequence[complex], sizes: Sequence[int] = (), repeated: int = 1) -> Statistics:
    element = element_type(dtype, 8)
    assert element is not None
    collector = collector_for(element)
    at = 0
    for size in (*sizes, len(numbers)):
        part = list(numbers[at : at + size])
        if part:
            collector.add(part, lambda number, at=at: number + at, repeated)  # type: ignore[misc]
        at += size
    return collector.result(lambda position: (position,))


@given(FLOATS, st.lists(st.integers(1, 9), max_size=5))
def test_floats_in_pieces(numbers: list[float], sizes: list[int]) -> None:
    found = collected("float64", numbers, sizes)
    assert (found.numel, found.minimum, found.maximum) == (len(numbers), min(numbers), max(numbers))
    assert found.mean == pytest.approx(statistics.fmean(numbers), rel=1e-12, abs=1e-9)
    assert found.std == pytest.approx(statistics.stdev(numbers), rel=1e-9, abs=1e-9)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=2, max_size=60), st.lists(st.integers(1, 9)))
def test_integers_are_exact(numbers: list[int], sizes: list[int]) -> None:
    found = collected("int64", numbers, sizes)
    assert (found.minimum, found.maximum, found.zeros) == (min(numbers), max(numbers), numbers.count(0))
    assert found.mean == sum(numbers) / len(numbers)
    assert found.std == pytest.approx(statistics.stdev(numbers), rel=1e-12)


def test_nans_are_counted_and_left_out() -> None:
    found = collected("float32", [1.0, math.nan, 3.0, math.nan], [2])
    assert (found.nan, found.first_nan, found.minimum, found.maximum, found.mean) == (2, (1,), 1.0, 3.0, 2.0)
    assert found.std == pytest.approx(math.sqrt(2))
    none = collected("float32", [math.nan] * 3)
    assert (none.numel, none.nan, none.minimum, none.mean, none.std) == (3, 3, None, None, None)


def test_infinities_take_part_but_not_in_the_range_of_the_finite_numbers() -> None:
    """A histogram is made of it, with infinities among the numbers, too."""
    found = collected("float32", [1.0, math.inf, 2.0])
    assert (found.inf, found.first_inf, found.maximum, found.mean) == (1, (1,), math.inf, math.inf)
    assert found.std is not None
    assert math.isnan(found.std)
    both = collected("float32", [math.inf, 3.0, -math.inf, -1.5, 7.0], [2, 2])
    assert (both.minimum, both.maximum, both.finite) == (-math.inf, math.inf, (-1.5, 7.0))
    assert math.isnan(both.mean or 0)
    assert collected("float32", [math.inf, math.nan]).finite is None
    assert collected("int32", [4, -2]).finite == (-2, 4)


def test_an_expanded_element_counts_as_often_as_it_is_there() -> None:
    found = collected("float64", [1.0, 4.0], repeated=3)
    assert (found.numel, found.mean) == (6, 2.5)
    assert found.std == pytest.approx(statistics.stdev([1, 4] * 3))
    assert collected("float64", [1.7e308, 1.7e308]).mean == math.inf, "no double holds the sum"


def test_complex_numbers_have_no_order() -> None:
    numbers = [1 + 2j, 3 - 1j, 0j]
    found = collected("complex128", numbers)
    assert (found.minimum, found.maximum, found.zeros) == (None, None, 1)
    assert found.mean == pytest.approx(sum(numbers) / 3)
    variance = sum(abs(number - sum(numbers) / 3) ** 2 for number in numbers) / 2
    assert found.std == pytest.approx(math.sqrt(variance))


def test_subnormal_numbers_are_counted() -> None:
    tiny = 2.0**-130
    assert collected("float32", [0.0, 1.0, tiny, -tiny, 2.0**-126, math.nan]).subnormals == 2
    assert collected("float64", [0.0, tiny, 5e-324]).subnormals == 1
    assert collected("float32", [tiny], repeated=3).subnormals == 3
    assert collected("int32", [0, 1]).subnormals == 0
