"""Walks a strided tensor in pieces of bounded size: which bytes to read, and where in them the elements are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from gdbext.model.record import Record

CHUNK = 1 << 22
"""Bytes read at once, at most."""
_SPARSE = 16
"""Elements farther apart than this many times their size are read in smaller pieces."""
_PAGE = 4096


class Dimension(Record):
    """A size, its stride in elements, and how far one step goes in the tensor's own (row-major) order."""

    size: int
    stride: int
    weight: int


class Piece(Record):
    """Elements that are read together: ``offset`` is the first one's distance from the tensor's first, in elements;
    ``position`` its place in row-major order."""

    offset: int
    position: int
    dimensions: tuple[Dimension, ...]

    @property
    def elements(self) -> int:
        """How many elements."""
        total = 1
        for each in self.dimensions:
            total *= each.size
        return total

    @property
    def span(self) -> int:
        """Elements in memory from the first to the last."""
        return span_of(self.dimensions)

    @property
    def is_dense(self) -> bool:
        """Every element of the span belongs to the tensor, once, in memory order."""
        step = 1
        for each in reversed(self.dimensions):
            if each.stride != step:
                return False
            step *= each.size
        return True

    def offsets(self) -> list[int]:
        """Of each element, from the first one."""
        found = [0]
        for each in self.dimensions:
            steps = range(0, each.size * each.stride, each.stride) if each.stride else [0] * each.size
            found = [offset + step for offset in found for step in steps]
        return found

    def position_of(self, number: int) -> int:
        """The place in row-major order of the piece's element ``number``."""
        position = self.position
        for each in reversed(self.dimensions):
            number, index = divmod(number, each.size)
            position += index * each.weight
        return position


def span_of(dimensions: Sequence[Dimension]) -> int:
    """Elements in memory from the first to the last of a tensor that has elements."""
    return 1 + sum((each.size - 1) * each.stride for each in dimensions)


def dimensions_of(sizes: Sequence[int], strides: Sequence[int]) -> tuple[Dimension, ...]:
    """Those with more than one element, outermost first, joined where they make one."""
    weight = 1
    found: list[Dimension] = []
    for size, stride in zip(reversed(sizes), reversed(strides)):
        here = Dimension(size, stride, weight)
        weight *= size
        if size == 1:
            continue
        inner = found[-1] if found else None
        if inner and (here.stride, here.weight) == (inner.stride * inner.size, inner.weight * inner.size):
            found[-1] = Dimension(inner.size * size, inner.stride, inner.weight)
        else:
            found.append(here)
    return tuple(reversed(found))


def in_memory_order(dimensions: Sequence[Dimension]) -> tuple[tuple[Dimension, ...], int]:
    """The dimensions with the longest strides first, and how often each of their elements counts: those of an expanded
    dimension (stride 0) are the same one."""
    repeated = 1
    for each in dimensions:
        repeated *= each.size if each.stride == 0 else 1
    moving = (each for each in dimensions if each.stride)
    return tuple(sorted(moving, key=lambda each: -each.stride)), repeated


def pieces(dimensions: Sequence[Dimension], element: int, chunk: int = CHUNK) -> Iterator[Piece]:
    """All elements, in the order of ``dimensions``. ``element`` is the size of one in bytes."""
    outer, inner = _split(dimensions, element, chunk)
    for steps in product(*(range(each.size) for each in outer)):
        offset = sum(step * each.stride for step, each in zip(steps, outer))
        position = sum(step * each.weight for step, each in zip(steps, outer))
        if not inner:
            yield Piece(offset, position, ())
            continue
        first = inner[0]
        most = _together(first, span_of(inner[1:]), Piece(0, 0, tuple(inner[1:])).elements, element, chunk)
        for start in range(0, first.size, most):
            part = first._replace(size=min(most, first.size - start))
            yield Piece(offset + start * first.stride, position + start * first.weight, (part, *inner[1:]))


def _split(
    dimensions: Sequence[Dimension], element: int, chunk: int
) -> tuple[tuple[Dimension, ...], tuple[Dimension, ...]]:
    """The dimensions that are walked, and those that are read together; of the latter the first one in parts."""
    first = len(dimensions)
    while first > 0:
        inside = dimensions[first:]
        size = dimensions[first - 1].size
        if _together(dimensions[first - 1], span_of(inside), Piece(0, 0, tuple(inside)).elements, element, chunk) <= 1:
            break
        first -= 1
        if _together(dimensions[first], span_of(inside), Piece(0, 0, tuple(inside)).elements, element, chunk) < size:
            break
    return tuple(dimensions[:first]), tuple(dimensions[first:])


def _together(outer: Dimension, span: int, count: int, element: int, chunk: int) -> int:
    """How many steps of ``outer`` are read at once, when what is inside it spans ``span`` elements in memory."""
    limit = chunk // element
    if not outer.stride:
        return max(1, limit // count)
    if outer.stride > _SPARSE * count and outer.stride * element > _PAGE:
        return 1
    return max(1, min((limit - span) // outer.stride + 1, limit // count))
