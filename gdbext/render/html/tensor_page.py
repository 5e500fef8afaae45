"""``dispatch-tensor --html``: a tensor as a picture: what it is, a slice as a heat map, the histogram."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gdbext.model.sections.tensor_section import TensorSection
from gdbext.model.statistics import Histogram
from gdbext.model.tensor_slice import TensorSlice
from gdbext.render.html.page import Page, embedded, facts, text
from gdbext.render.text.views import tensor_view

_WIDTH, _HEIGHT = 640, 160
"""Of the histogram, in pixels."""


def render(tensor: TensorSection, part: TensorSlice | None, reason: str = "") -> str:
    """The page; ``reason``: why there is no slice."""
    return Page(f"{tensor.label}: {tensor_view.headline(tensor)}", ("heatmap",)).whole(_body(tensor, part, reason))


def _body(tensor: TensorSection, part: TensorSlice | None, reason: str) -> Iterator[str]:
    yield f"<h1>{text(tensor.label)}: {text(tensor_view.headline(tensor))}</h1>"
    yield from facts(tensor_view.fields(tensor))
    yield from (f'<p class="note">{text(note)}</p>' for note in tensor.notes)
    yield from (f'<p class="warning">unknown: {text(problem)}</p>' for problem in tensor.problems)
    if tensor.statistics is not None and tensor.statistics.numel:
        yield f"<h2>Statistics</h2><p>{text(tensor_view.statistics_text(tensor.statistics))}</p>"
        yield from (f'<p class="warning">{text(line)}</p>' for line in tensor_view.first_odd_ones(tensor.statistics))
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
