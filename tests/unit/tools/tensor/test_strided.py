"""Pieces of strided tensors: together they are the tensor, none is larger than was asked for."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from gdbext.tools.tensor.elements import Dimension, dimensions_of, in_memory_order, pieces, span_of

SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), max_size=4)


def elements(sizes: list[int], strides: list[int]) -> list[int]:
    """Where every element is, in row-major order."""
    indices = product(*(range(size) for size in sizes))
    return [sum(index * stride for index, stride in zip(each, strides)) for each in indices]


@given(SHAPES, st.integers(1, 200))
def test_pieces_in_row_major_order_are_the_tensor(shape: list[tuple[int, int]], chunk: int) -> None:
    sizes, strides = [size for size, _ in shape], [stride for _, stride in shape]
    parts = pieces(dimensions_of(sizes, strides), 1, chunk)
    found = [piece.offset + offset for piece in parts for offset in piece.offsets()]
    assert found == elements(sizes, strides)


@given(SHAPES, st.integers(1, 200))
def test_pieces_in_memory_order_know_their_places(shape: list[tuple[int, int]], chunk: int) -> None:
    sizes, strides = [size for size, _ in shape], [stride for _, stride in shape]
    wanted = elements(sizes, strides)
    dimensions, repeated = in_memory_order(dimensions_of(sizes, strides))
    found = []
    for piece in pieces(dimensions, 1, chunk):
        for number, offset in enumerate(piece.offsets()):
            found.append(piece.offset + offset)
            assert wanted[piece.position_of(number)] == piece.offset + offset
    assert sorted(found * repeated) == sorted(wanted)


@given(SHAPES, st.integers(1, 200), st.integers(1, 16))
def test_no_piece_reads_more_than_the_limit(shape: list[tuple[int, int]], chunk: int, element: int) -> None:
    dimensions = dimensions_of([size for size, _ in shape], [stride for _, stride in shape])
    for piece in pieces(dimensions, element, chunk):
        assert piece.elements == 1 or piece.span * element <= chunk


def test_dimensions_of_a_contiguous_tensor_are_one_and_far_elements_are_read_alone() -> None:
    assert dimensions_of([4, 1, 3, 5], [15, 7, 5, 1]) == (Dimension(60, 1, 1),)
    column = dimensions_of([1000], [100_000])
    assert [piece.span for piece in pieces(column, 4)] == [1] * 1000
    assert span_of(column) == 99_900_001
