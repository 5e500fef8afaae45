"""A two-dimensional slice of a tensor, thinned to what a picture can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdbext.errors import UsageError
from gdbext.model.tensor_parts import Quantization
from gdbext.model.tensor_slice import TensorSlice
from gdbext.torch.tensors.contents import Contents, NothingToRead

CELLS = 256
"""Rows, and columns, of a picture at most."""
_ROW_CELLS = 1024
"""Columns where there is one row."""


def read_slice(contents: Contents, index: Sequence[int] = ()) -> TensorSlice:
    """The slice at ``index`` of the leading dimensions, by default the first one. Raises UsageError for an index that
    does not exist, NothingToRead for a tensor that cannot be cut, MemoryFault."""
    geometry = contents.geometry
    leading = max(0, len(geometry.sizes) - 2)
    chosen = _checked(index, geometry.sizes[:leading])
    if not geometry.numel:
        raise NothingToRead("it has no elements")
    first = sum(at * stride for at, stride in zip(chosen, geometry.strides))
    sizes, strides = (1, 1, *geometry.sizes[leading:])[-2:], (0, 0, *geometry.strides[leading:])[-2:]
    limits = (1, _ROW_CELLS) if sizes[0] == 1 else (CELLS, CELLS)
    steps = tuple(-(-size // limit) for size, limit in zip(sizes, limits))
    element = geometry.element
    per_byte = element.packed // element.numbers
    if first % per_byte:
        raise NothingToRead(f"slice {list(chosen)} begins within a byte")
    part = geometry._replace(
        address=geometry.address + first * element.size // per_byte,
        sizes=tuple(-(-size // step) for size, step in zip(sizes, steps)),
        strides=tuple(stride * step for stride, step in zip(strides, steps)),
    )
    values = contents.of(part, lambda how: _cut(how, chosen, len(geometry.sizes), steps)).values()
    if element.numbers > 1:
        values = [_numbers_of(row, steps[1]) for row in values]
    rows = tuple(tuple(_plain(value) for value in row) for row in values)
    is_magnitude = any(isinstance(value, complex) for row in values for value in row)
    step = steps[1] * element.numbers if steps[1] > 1 else 1
    return TensorSlice(chosen, sizes[0], sizes[1] * element.numbers, steps[0], step, rows, is_magnitude)


def _numbers_of(row: Sequence[Sequence[Any]], step: int) -> list[Any]:
    """Of elements that are several numbers each: all of them, or, where the row is a sample, the first of each."""
    return [number for element in row for number in (element if step == 1 else element[:1])]


def _checked(index: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    if not index:
        return (0,) * len(sizes)
    if len(index) != len(sizes) or any(not -size <= at < size for at, size in zip(index, sizes)):
        raise UsageError(
            f"there is no slice {','.join(map(str, index))}",
            why=f"all dimensions but the last two have an index, and here their sizes are {list(sizes)}",
        )
    return tuple(at % size for at, size in zip(index, sizes))


def _cut(how: Quantization, index: Sequence[int], dimensions: int, steps: Sequence[int]) -> Quantization:
    """What quantises the slice, where each channel has numbers of its own."""
    if how.axis is None:
        return how
    if how.axis < len(index):
        at = index[how.axis]
        return how._replace(scale=(how.scale[at],), zero_point=(how.zero_point[at],), axis=None)
    step = steps[how.axis - dimensions]
    return how._replace(scale=how.scale[::step], zero_point=how.zero_point[::step], axis=how.axis - dimensions + 2)


def _plain(value: Any) -> float:
    return abs(value) if isinstance(value, complex) else float(value)
