"""The report of ``dispatch-tensor`` on a tensor: its record and its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gdbext.diagnosis.report import Report
from gdbext.engine.vocabulary import Section, counted, json_member, or_unknown
from gdbext.render import Style, escape
from gdbext.torch.stack import DispatchKeySet
from gdbext.torch.values.value_text import (
    NO_STATISTICS,
    GradFunction,
    Histogram,
    Part,
    Quantization,
    Statistics,
    StorageReport,
    number_text,
    short_name,
    statistics_text,
)

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Hexadecimal, Inline, Internal


@dataclass(frozen=True)
class TensorSection(Section):
    """Everything known about a tensor. A field is None if it is unknown (``problems`` says why) or does not apply."""

    name: ClassVar[str] = "tensor"
    address: Hexadecimal
    implementation: str
    """The C++ class of the tensor."""
    python_type: str | None
    sizes: tuple[int | None, ...] | None
    """None for a size that is symbolic."""
    strides: tuple[int | None, ...] | None
    storage_offset: int | None
    dtype: str
    device: str | None
    layout: str
    keyset: DispatchKeySet
    numel: int | None
    requires_grad: bool | None
    is_leaf: bool | None
    is_view: bool | None
    grad_fn: GradFunction | None
    grad: str | None
    version: int | None
    names: tuple[str | None, ...] | None
    contiguity: tuple[str, ...]
    conjugate: bool
    negative: bool
    storage: StorageReport | None
    quantization: Quantization | None
    wraps: tuple[Part, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]
    """Remarks for the reader: why there are no values, what a wrapper stands for."""
    statistics: Internal[Statistics | None] = None
    histogram: Histogram | None = None
    values: Any = None
    """Nested lists as of ``tolist()``; None if there are more than 64."""
    saved: str | None = None
    """The file of --save."""
    page: str | None = None
    """The file of --html."""
    whose: str = ""
    """The frame with the variable of --py: ``train.py:8 (step)``."""
    problems: tuple[str, ...] = ()
    name_: str = ""
    """The name that the user gave."""

    @json_member(after="name")
    def written_statistics(self) -> Inline[Statistics]:
        """The statistics; null each where there are no elements."""
        return self.statistics or NO_STATISTICS


_INDENT = "  "


def render(report: Report, style: Style) -> Iterator[str]:
    """The text of the report, line by line: fields, parts, notes, statistics, values."""
    tensor = report.section(TensorSection)
    whose = f"  of {escape(tensor.whose)}" if tensor.whose else ""
    yield style(f"{escape(tensor.name_)}: {headline(tensor)}", "bold") + whose
    yield from (f"{_INDENT}{title:<14}{escape(text)}" for title, text in fields(tensor) if text)
    for title, parts in (("wraps", tensor.wraps), ("made of", tensor.parts)):
        yield from _parts(title, parts)
    yield from (f"{_INDENT}{escape(note)}" for note in tensor.notes)
    if tensor.statistics:
        yield from _statistics(tensor.statistics, tensor.histogram, style)
    if tensor.values is not None:
        yield f"{_INDENT}values"
        yield from (f"{_INDENT * 2}{line}" for line in value_lines(tensor.values))
    if tensor.saved:
        yield f"saved to {escape(tensor.saved)}"
    if tensor.page:
        yield f"page: {escape(tensor.page)}"
    yield from (style(f"{_INDENT}unknown: {escape(problem)}", "yellow") for problem in tensor.problems)


def headline(tensor: TensorSection) -> str:
    """dtype, sizes and device: ``f32[4, 4] cpu``."""
    sizes = "?" if tensor.sizes is None else ", ".join(map(or_unknown, tensor.sizes))
    return f"{short_name(tensor.dtype)}[{sizes}] {tensor.device or ''}".rstrip()


def fields(tensor: TensorSection) -> Iterator[tuple[str, str]]:
    """(title, text) of each field, "" if one does not apply."""
    python = f", Python {tensor.python_type}" if tensor.python_type else ""
    yield "object", f"{tensor.implementation} at {tensor.address:#x}{python}"
    yield "dtype", f"torch.{tensor.dtype}"
    yield "layout", f"torch.{tensor.layout}"
    if tensor.strides is not None:
        strides = ", ".join(map(or_unknown, tensor.strides))
        offset = "" if tensor.storage_offset is None else f", offset {tensor.storage_offset}"
        yield "strides", f"[{strides}]{offset}  {', '.join(tensor.contiguity)}".rstrip()
    if tensor.names is not None:
        yield "names", f"[{', '.join(name or 'None' for name in tensor.names)}]"
    yield "keyset", f"DispatchKeySet({', '.join(tensor.keyset.keys)})  {tensor.keyset.bits:#x}"
    yield "autograd", ", ".join(_autograd(tensor))
    yield "version", or_unknown(tensor.version, "")
    if tensor.storage:
        storage = tensor.storage
        plural = "" if storage.shared_by == 1 else "s"
        shared = f", {storage.shared_by} reference{plural}" if storage.shared_by is not None else ""
        yield "storage", f"{counted(storage.size, 'byte')} at {storage.data:#x} on {storage.device}{shared}"
    bits = (("conjugate", tensor.conjugate), ("negative", tensor.negative))
    yield "marked", ", ".join(word for word, on in bits if on)
    if tensor.quantization:
        scheme, scales, zeros, channel_axis = tensor.quantization
        axis = "" if channel_axis is None else f", axis {channel_axis}"
        yield "quantized", f"{scheme}: scale {_first_numbers(scales)}, zero point {_first_numbers(zeros)}{axis}"


def _first_numbers(numbers: Sequence[float]) -> str:
    """The first six numbers as a list; a single one without brackets."""
    texts = [*map(number_text, numbers[:6]), *(["…"] if len(numbers) > 6 else [])]
    return texts[0] if len(numbers) == 1 else f"[{', '.join(texts)}]"


def _autograd(tensor: TensorSection) -> Iterator[str]:
    """The items of the line "autograd": ``requires_grad=True``, ``grad_fn=<AddBackward0>``, ``leaf`` …"""
    if tensor.requires_grad is None:
        return
    yield f"requires_grad={tensor.requires_grad}"
    if tensor.grad_fn:
        number = tensor.grad_fn.sequence_nr
        yield f"grad_fn=<{tensor.grad_fn.name}>" + ("" if number is None else f" (sequence number {number})")
    elif tensor.is_leaf:
        yield "leaf"
    if tensor.is_view:
        yield "view"
    if tensor.grad:
        yield f"grad {tensor.grad}"


def _parts(title: str, parts: tuple[Part, ...]) -> Iterator[str]:
    """A line for each tensor that this one wraps or consists of, the first one after ``title``."""
    for part in parts:
        line = f"{_INDENT}{title:<14}{escape(part.name)}: {escape(part.short)} at {part.address:#x}"
        title = ""
        values = "" if part.values is None else f"  = {', '.join(map(str.strip, value_lines(part.values)))}"
        yield f"{line}  {statistics_text(part.statistics)}{values}" if part.statistics else line


def first_non_finite(statistics: Statistics) -> Iterator[str]:
    """A line with the index of the first NaN, and one of the first infinity, if there are any."""
    for name, index in (("NaN", statistics.first_nan), ("Inf", statistics.first_inf)):
        if index is not None:
            yield f"{'first ' + name:<14}at {list(index)}"


def _statistics(statistics: Statistics, histogram: Histogram | None, style: Style) -> Iterator[str]:
    """Lines on the elements: statistics, positions of the first NaN and infinity, histogram."""
    text = f": {statistics_text(statistics)}" if statistics.numel else ""
    yield f"{_INDENT}{'elements':<14}{statistics.numel}{text}"
    yield from (style(f"{_INDENT}{line}", "red") for line in first_non_finite(statistics))
    if histogram and histogram.total:
        low, high = number_text(histogram.low), number_text(histogram.high)
        sampled = f"  ({counted(histogram.total, 'element')} sampled)" if histogram.sampled else ""
        most = max(histogram.counts)
        bars = "".join(" ▁▂▃▄▅▆▇█"[-(-count * 8 // most)] for count in histogram.counts)  # each count but 0 is visible
        yield f"{_INDENT}{'histogram':<14}{low} {bars} {high}{sampled}"


def value_lines(values: Any) -> list[str]:
    """Nested lists as text, a line for each innermost list; a single number as one line."""
    if not isinstance(values, list):
        return [number_text(values)]
    if not values or not isinstance(values[0], list):
        return ["[" + ", ".join(map(number_text, values)) + "]"]
    lines = [line for block in map(value_lines, values) for line in block]
    if len(lines) == 1:
        return [f"[{lines[0]}]"]
    return ["[" + lines[0], *(" " + line for line in lines[1:-1]), " " + lines[-1] + "]"]
