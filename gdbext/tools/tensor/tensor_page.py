"""``dispatch-tensor --html``: a tensor as a picture: what it is, a slice as a heat map, the histogram.

TensorSlice: the numbers of a tensor's two-dimensional slice, as a picture shows them.

A two-dimensional slice of a tensor, thinned to what a picture can show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from gdbext.engine.record import Record
from gdbext.errors import UsageError
from gdbext.render.page import Page, embedded, facts, text
from gdbext.tools.tensor import tensor_section
from gdbext.tools.tensor.contents import Contents, NothingToRead
from gdbext.tools.tensor.tensor_section import TensorSection
from gdbext.torch.values.tensor_facts import Histogram, Quantization, statistics_text


class TensorSlice(Record):
    """``leading`` is the index of the dimensions before the last two; a tensor of fewer dimensions is one row.

    ``rows`` and ``columns`` are the slice's own sizes; ``values`` has every ``row_step``-th and ``column_step``-th of
    them. Of complex numbers the absolute values are shown (``is_magnitude``).
    """

    leading: tuple[int, ...]
    rows: int
    columns: int
    row_step: int
    column_step: int
    values: tuple[tuple[float, ...], ...]
    is_magnitude: bool = False


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
    """The numbers of elements that are several numbers each: all of them, or, where the row is a sample, the first of
    each."""
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
    """The part of the quantiser for the slice, where each channel has numbers of its own."""
    if how.axis is None:
        return how
    if how.axis < len(index):
        at = index[how.axis]
        return how._replace(scale=(how.scale[at],), zero_point=(how.zero_point[at],), axis=None)
    step = steps[how.axis - dimensions]
    return how._replace(scale=how.scale[::step], zero_point=how.zero_point[::step], axis=how.axis - dimensions + 2)


def _plain(value: Any) -> float:
    return abs(value) if isinstance(value, complex) else float(value)


_WIDTH, _HEIGHT = 640, 160
"""Size of the histogram, in pixels."""


def render(tensor: TensorSection, part: TensorSlice | None, reason: str = "") -> str:
    """The page; ``reason``: why there is no slice."""
    return Page(f"{tensor.label}: {tensor_section.headline(tensor)}", ("heatmap",)).whole(_body(tensor, part, reason))


def _body(tensor: TensorSection, part: TensorSlice | None, reason: str) -> Iterator[str]:
    yield f"<h1>{text(tensor.label)}: {text(tensor_section.headline(tensor))}</h1>"
    yield from facts(tensor_section.fields(tensor))
    yield from (f'<p class="note">{text(note)}</p>' for note in tensor.notes)
    yield from (f'<p class="warning">unknown: {text(problem)}</p>' for problem in tensor.problems)
    if tensor.statistics is not None and tensor.statistics.numel:
        yield f"<h2>Statistics</h2><p>{text(statistics_text(tensor.statistics))}</p>"
        yield from (f'<p class="warning">{text(line)}</p>' for line in tensor_section.first_odd_ones(tensor.statistics))
    if tensor.histogram is not None:
        yield from _histogram(tensor.histogram)
    if part is not None:
        yield from _heat_map(part)
    elif reason:
        yield f'<p class="note">There is no picture: {text(reason)}</p>'


def _histogram(found: Histogram) -> Iterator[str]:
    """Bars from the lowest number to the highest."""
    most, step = max(found.counts, default=0) or 1, _WIDTH / max(1, len(found.counts))
    span = (found.high - found.low) / max(1, len(found.counts))
    sampled = ", of a sample" if found.sampled else ""
    yield f'<h2>Histogram{sampled}</h2><svg class="histogram" width="{_WIDTH}" height="{_HEIGHT + 20}" role="img">'
    for number, count in enumerate(found.counts):
        height = count / most * _HEIGHT
        low = found.low + number * span
        place = f'x="{number * step:.1f}" y="{_HEIGHT - height:.1f}" width="{step - 1:.1f}" height="{height:.1f}"'
        yield f"<rect {place}><title>{low:.6g} to {low + span:.6g}: {count}</title></rect>"
    yield f'<text x="0" y="{_HEIGHT + 14}">{found.low:.6g}</text>'
    yield f'<text x="{_WIDTH}" y="{_HEIGHT + 14}" text-anchor="end">{found.high:.6g}</text></svg>'


def _heat_map(part: TensorSlice) -> Iterator[str]:
    yield f"<h2>{text(_title(part))}</h2>"
    if (part.row_step, part.column_step) != (1, 1):
        which = f"every {_ordinal(part.row_step)} row and every {_ordinal(part.column_step)} column"
        yield f'<p class="warning">It is a sample, {which}: what lies between is not seen here.</p>'
    yield '<canvas class="heat" id="heat"></canvas><p id="legend" class="note"></p>'
    yield '<div class="tip" id="tip" hidden></div>'
    values = [[_number(value) for value in row] for row in part.values]
    yield embedded("slice", {
        "index": part.leading, "rowStep": part.row_step, "columnStep": part.column_step, "values": values,
        "hasRows": part.rows > 1,
    })  # fmt: skip


def _title(part: TensorSlice) -> str:
    index = ", ".join((*map(str, part.leading), ":", ":")) if part.rows > 1 or part.leading else ":"
    return f"{'Absolute values' if part.is_magnitude else 'Values'} of [{index}], {part.rows} × {part.columns}"


def _ordinal(step: int) -> str:
    return {1: "single", 2: "2nd", 3: "3rd"}.get(step, f"{step}th")


def _number(value: float) -> float | str:
    """Short, for it is only shown; JSON has no NaN."""
    if math.isfinite(value):
        return float(f"{value:.6g}")
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
