"""The files that ``dispatch-tensor`` writes: safetensors, and a page with a slice as a heat map and the histogram.

A safetensors file (https://huggingface.co/docs/safetensors, "Format") is eight bytes with the header's length, the
header as JSON, and the tensors' bytes, row-major, little-endian, one after the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.whole_file import PRIVATE, WholeFile, cannot_write
from gdbext.errors import TargetError, UsageError
from gdbext.render.page import NO_ORIGIN, Origin, Page, embedded, facts, text
from gdbext.tools.tensor import tensor_section
from gdbext.tools.tensor.contents import Contents, NothingToRead
from gdbext.tools.tensor.tensor_section import TensorSection
from gdbext.torch.values.value_text import Histogram, Quantization, statistics_text

if TYPE_CHECKING:
    from gdbext.tools.tensor.tensor_report import TensorReporter


TYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
"""Names of torch's dtypes in the format (safetensors/src/tensor.rs, 0.8.0)."""


class StoredTensor(NamedTuple):
    """One entry of a safetensors file; ``data`` gives its ``size`` bytes in pieces."""

    name: str
    dtype: str
    shape: Sequence[int]
    size: int
    data: Iterable[bytes]


def write(path: str, tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file that only its owner can read. After an error there is no file. Raises TargetError, and
    whatever the tensors' ``data`` raises."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for tensor in tensors:
        offsets = [end, end + tensor.size]
        entries[tensor.name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        end += tensor.size
    header = json.dumps(entries, ensure_ascii=True).encode()
    header += b" " * (-len(header) % 8)  # the data is aligned
    try:
        with WholeFile(path, PRIVATE) as file:
            file.need(end)
            file.write(len(header).to_bytes(8, "little") + header)
            for tensor in tensors:
                written = 0
                for piece in tensor.data:
                    file.write(piece)
                    written += len(piece)
                if written != tensor.size:
                    raise TargetError(f"{tensor.name} has {written} bytes instead of {tensor.size}")
    except OSError as error:
        raise cannot_write(path, error) from error


def save(reporter: TensorReporter, tensor: TensorSection, path: str) -> None:
    """Write the tensor to ``path``, a sparse or nested one as its parts. Raises TargetError (it cannot be written, or
    has no elements), MemoryFault, BadData."""
    name = tensor.name_ if tensor.name_.isidentifier() else "tensor"
    entries = list(entries_of(reporter, tensor.address, name))
    for part in tensor.parts:
        entries += entries_of(reporter, part.address, f"{name}.{part.name}")
    if not entries:
        raise TargetError(
            f"{tensor.name_} has no elements that can be saved",
            why="; ".join((*tensor.notes, *tensor.problems)) or None,
            help="omit --save to see the tensor",
        )
    metadata = {"dtype": tensor.dtype, "layout": tensor.layout, "sizes": str(list(tensor.sizes or ()))}
    if tensor.quantization:
        scheme, scale, zero_point, axis = tensor.quantization
        metadata["quantization"] = f"{scheme} scale={list(scale)} zero_point={list(zero_point)} axis={axis}"
    write(path, entries, metadata)


def entries_of(reporter: TensorReporter, address: int, name: str) -> Iterator[StoredTensor]:
    """The tensor at ``address`` as one entry, none if it has no elements to read. A dtype that the format lacks becomes
    another one: complex numbers get a last dimension (real, imaginary), other types become bytes. Raises BadData,
    MemoryFault."""
    try:
        contents = reporter.contents(reporter.facts(address))
    except NothingToRead:
        return
    element, shape = contents.geometry.element, contents.geometry.sizes
    size = contents.geometry.numel * element.size
    dtype = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}.get(element.dtype, element.dtype)
    parts = {"complex128": "float64", "complex32": "float16"}.get(dtype)
    if parts:
        dtype, shape = parts, (*shape, 2)
    elif dtype not in TYPES:
        dtype = "uint8"
        if element.size > 1:
            shape = (*shape, element.size)
        if element.packed != element.numbers:  # several elements a byte
            size = -(-contents.geometry.numel // element.packed)
            shape = (size,)
    yield StoredTensor(name, dtype, shape, size, contents.stored())


class TensorSlice(NamedTuple):
    """A two-dimensional slice for a heat map. ``leading`` is the index in the dimensions before the last two; a tensor
    of fewer dimensions is one row.

    ``rows`` and ``columns`` are the slice's own sizes; ``values`` has only every ``row_step``-th row and
    ``column_step``-th column. ``is_magnitude``: they are the absolute values of complex numbers.
    """

    leading: tuple[int, ...]
    rows: int
    columns: int
    row_step: int
    column_step: int
    values: tuple[tuple[float, ...], ...]
    is_magnitude: bool = False


CELLS = 256
"""Rows, and columns, of a heat map at most."""
_ROW_CELLS = 1024
"""Columns of a heat map that has one row."""


def read_slice(contents: Contents, index: Sequence[int] = ()) -> TensorSlice:
    """The slice at ``index`` of the leading dimensions (default: the first one). Raises UsageError for an index that
    does not exist, NothingToRead for an empty tensor or a slice that does not start at a byte, MemoryFault."""
    geometry = contents.geometry
    leading = geometry.sizes[:-2]
    if index and (len(index) != len(leading) or any(not -size <= at < size for at, size in zip(index, leading))):
        raise UsageError(
            f"there is no slice {','.join(map(str, index))}",
            why=f"all dimensions but the last two have an index, and here their sizes are {list(leading)}",
        )
    chosen = tuple(at % size for at, size in zip(index, leading)) if index else (0,) * len(leading)
    if not geometry.numel:
        raise NothingToRead("it has no elements")
    first = sum(at * stride for at, stride in zip(chosen, geometry.strides))
    sizes, strides = (1, 1, *geometry.sizes[len(leading) :])[-2:], (0, 0, *geometry.strides[len(leading) :])[-2:]
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
    values = contents.part(part, lambda how: _cut_quantizer(how, chosen, len(geometry.sizes), steps)).values()
    step = steps[1]
    if element.numbers > 1:  # elements of several numbers each: all of them, or the first of each if it is a sample
        values = [[number for numbers in row for number in (numbers if step == 1 else numbers[:1])] for row in values]
        step = step * element.numbers if step > 1 else 1
    is_magnitude = any(isinstance(value, complex) for row in values for value in row)
    rows = tuple(tuple(abs(value) if is_magnitude else float(value) for value in row) for row in values)
    return TensorSlice(chosen, sizes[0], sizes[1] * element.numbers, steps[0], step, rows, is_magnitude)


def _cut_quantizer(
    quantization: Quantization, index: Sequence[int], dimensions: int, steps: Sequence[int]
) -> Quantization:
    """The quantizer of a slice: per channel, only the scales and zero points of the slice's channels are kept.

    ``index``: the slice's index in the leading dimensions; ``dimensions``: how many the tensor has; ``steps``: the
    slice's row_step and column_step.
    """
    scale, zero_point, axis = quantization.scale, quantization.zero_point, quantization.axis
    if axis is None:
        return quantization
    if axis < len(index):
        at = index[axis]
        return quantization._replace(scale=(scale[at],), zero_point=(zero_point[at],), axis=None)
    step = steps[axis - dimensions]
    return quantization._replace(scale=scale[::step], zero_point=zero_point[::step], axis=axis - dimensions + 2)


def render(tensor: TensorSection, part: TensorSlice | None, reason: str = "", origin: Origin = NO_ORIGIN) -> str:
    """The HTML page of --html, with ``part`` as a heat map; ``reason``: why there is no part, "" if that is obvious."""
    title = f"{tensor.name_}: {tensor_section.headline(tensor)}"
    return Page(title, ("heatmap",)).whole(_body(title, tensor, part, reason, origin))


def _body(title: str, tensor: TensorSection, part: TensorSlice | None, reason: str, origin: Origin) -> Iterator[str]:
    """The page's lines: fields, notes, statistics, histogram, heat map."""
    yield f"<h1>{text(title)}</h1>"
    yield from facts((*tensor_section.fields(tensor), *origin.facts))
    yield from (f'<p class="note">{text(note)}</p>' for note in tensor.notes)
    yield from (f'<p class="warning">unknown: {text(problem)}</p>' for problem in tensor.problems)
    if tensor.statistics and tensor.statistics.numel:
        yield f"<h2>Statistics</h2><p>{text(statistics_text(tensor.statistics))}</p>"
        yield from (
            f'<p class="warning">{text(line)}</p>' for line in tensor_section.first_non_finite(tensor.statistics)
        )
    if tensor.histogram:
        yield from _histogram(tensor.histogram)
    if part:
        yield from _heat_map(part)
    elif reason:
        yield f'<p class="note">There is no heat map: {text(reason)}</p>'


def _heat_map(part: TensorSlice) -> Iterator[str]:
    """The canvas and the data that the page's script draws on it."""
    index = ", ".join((*map(str, part.leading), ":", ":")) if part.rows > 1 or part.leading else ":"
    what = "Absolute values" if part.is_magnitude else "Values"
    yield f"<h2>{text(f'{what} of [{index}], {part.rows} × {part.columns}')}</h2>"
    if (part.row_step, part.column_step) != (1, 1):
        ordinals = {1: "single", 2: "2nd", 3: "3rd"}
        row, column = (ordinals.get(step, f"{step}th") for step in (part.row_step, part.column_step))
        which = f"every {row} row and every {column} column"
        yield f'<p class="warning">This is a sample, {which}: elements between them are not shown.</p>'
    yield '<canvas class="heat" id="heat"></canvas><p id="legend" class="note"></p>'
    yield '<div class="tip" id="tip" hidden></div>'

    def json_number(value: float) -> float | str:  # short; JSON has no NaN
        if math.isfinite(value):
            return float(f"{value:.6g}")
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")

    members = {
        "index": part.leading,
        "rowStep": part.row_step,
        "columnStep": part.column_step,
        "values": [[json_number(value) for value in row] for row in part.values],
        "hasRows": part.rows > 1,
    }
    yield embedded("slice", members)


def _histogram(histogram: Histogram) -> Iterator[str]:
    """The histogram as an SVG drawing; each bar's tooltip has its range and count."""
    width, height = 640, 160  # pixels
    counts, low, high = histogram.counts, histogram.low, histogram.high
    most, step = max(counts, default=0) or 1, width / max(1, len(counts))
    span = (high - low) / max(1, len(counts))
    sampled = ", of a sample" if histogram.sampled else ""
    yield f'<h2>Histogram{sampled}</h2><svg class="histogram" width="{width}" height="{height + 20}" role="img">'
    for number, count in enumerate(counts):
        bar = count / most * height
        start = low + number * span
        box = f'x="{number * step:.1f}" y="{height - bar:.1f}" width="{step - 1:.1f}" height="{bar:.1f}"'
        yield f"<rect {box}><title>{start:.6g} to {start + span:.6g}: {count}</title></rect>"
    yield f'<text x="0" y="{height + 14}">{low:.6g}</text>'
    yield f'<text x="{width}" y="{height + 14}" text-anchor="end">{high:.6g}</text></svg>'
