"""The elements of one tensor: read in pieces, decoded, and turned into statistics, a histogram, values, or a file."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gdbext.errors import BadData
from gdbext.tools.tensor import elements
from gdbext.tools.tensor.numpy_statistics import NumpyNumbers
from gdbext.tools.tensor.statistics import collector_for
from gdbext.torch.values.value_text import Histogram, Quantization, Statistics

VALUES_LIMIT = 64
"""Elements of a tensor that is shown whole."""
BINS = 32
_NUMPY_FROM = 1 << 16
"""Elements from which on importing numpy pays."""
_HISTOGRAM_LIMIT = 1 << 20
_NUMPY_HISTOGRAM_LIMIT = 1 << 24
"""Elements that a histogram is counted over, at most; of more every n-th piece is taken."""

_HISTOGRAM_PIECES = 500
"""Pieces of a histogram that is a sample: many more than its parts, for numbers that are in order."""
_SAMPLES = 64
"""Pieces that a sample is made of."""

ReadBytes = Callable[[int, int], bytes]
Progress = Callable[[float], None]
"""Told which part of the elements, 0 to 1, is done."""


class NothingToRead(BadData):
    """A tensor without elements in memory that can be read: that is its nature, and no fault."""


def no_progress(done: float) -> None:
    """Default progress callback: does nothing."""
    del done


class Geometry(NamedTuple):
    """The layout of the elements in memory: ``address`` of the first one, sizes and strides in elements."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element: elements.ElementType

    @property
    def numel(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.sizes)

    @property
    def dimensions(self) -> tuple[elements.Dimension, ...]:
        """The dimensions, in row-major order."""
        return elements.dimensions_of(self.sizes, self.strides)


class Contents:
    """The elements of one tensor. Everything raises MemoryFault."""

    def __init__(
        self,
        read: ReadBytes,
        geometry: Geometry,
        quantization: Quantization | None = None,
        conjugate: bool = False,
        negative: bool = False,
        numpy: Callable[[], Any] = lambda: None,
        progress: Progress = no_progress,
        chunk: int = 1 << 22,
    ) -> None:
        """``read`` reads memory past all caches; ``numpy`` gives the module where it may be used."""
        self._read = read
        self.geometry = geometry
        self._element = geometry.element
        self._quantization = quantization
        self._conjugate = conjugate
        self._negative = negative
        self._progress = progress
        self._chunk = chunk
        self._numbers: NumpyNumbers | None = None
        plain = not (quantization or conjugate or negative)
        if plain and geometry.numel >= _NUMPY_FROM and NumpyNumbers.handles(self._element):
            module = numpy()
            self._numbers = NumpyNumbers(module, self._element) if module else None

    def of(self, geometry: Geometry, cut: Callable[[Quantization], Quantization]) -> Contents:
        """A part of the elements; ``cut`` gives what quantises them."""
        how = cut(self._quantization) if self._quantization else None
        return Contents(self._read, geometry, how, self._conjugate, self._negative)

    # --- reading ---------------------------------------------------------------------------------

    def _raw(self, piece: elements.Piece) -> bytes:
        size = self._element.size
        return self._read(self.geometry.address + piece.offset * size, piece.span * size)

    def _decoded(self, piece: elements.Piece) -> Sequence[Any]:
        """The piece's numbers in its order."""
        element = self._element
        in_bytes = element.packed == element.numbers
        numbers = element.decode(self._gathered(piece)) if in_bytes else self._unpacked(piece)
        if self._conjugate or self._negative or self._quantization:
            return self._meant(numbers, piece)
        return numbers

    def _gathered(self, piece: elements.Piece) -> bytes:
        """The bytes of its elements, one after the other; of several elements a byte, those bytes."""
        if self._element.packed != self._element.numbers:
            packed = self._element.packed
            return self._read(self.geometry.address + piece.offset // packed, -(-piece.span // packed))
        raw, size = self._raw(piece), self._element.size
        if piece.is_dense:
            return raw
        return b"".join([raw[at * size : (at + 1) * size] for at in piece.offsets()])

    def _unpacked(self, piece: elements.Piece) -> list[elements.Number]:
        """The values of several elements a byte; strides and offsets count elements all the same."""
        packed = self._element.packed
        first, skip = divmod(piece.offset, packed)
        raw = self._read(self.geometry.address + first, -(-(skip + piece.span) // packed))
        numbers = self._element.decode(raw)
        return [numbers[skip + at] for at in piece.offsets()]

    def _meant(self, numbers: Sequence[Any], piece: elements.Piece) -> list[Any]:
        """The values as the bits in the key set and the quantiser want them to be read."""
        found = list(numbers)
        if self._quantization:
            found = self._dequantized(found, piece, self._quantization)
        if self._conjugate and self._element.kind == "complex":
            found = [number.conjugate() for number in found]
        return [-number for number in found] if self._negative else found

    def _dequantized(self, numbers: list[int], piece: elements.Piece, how: Quantization) -> list[float]:
        """The values as ``dequantize()`` calculates them: rounded to float32, with a float32 scale where there is one
        for all, with the channels' own of double precision (ATen/native/quantized/AffineQuantizer.cpp)."""
        if how.axis is None:
            scale, zero = _float32(how.scale[0]), how.zero_point[0]
            return [_float32((number - zero) * scale) for number in numbers]
        below = math.prod(self.geometry.sizes[how.axis + 1 :])
        channels = self.geometry.sizes[how.axis]
        found = []
        for index, number in enumerate(numbers):
            channel = piece.position_of(index) // below % channels
            found.append(_float32((number - how.zero_point[channel]) * how.scale[channel]))
        return found

    def _pieces(self, dimensions: Sequence[elements.Dimension], chunk: int = 0) -> Iterator[elements.Piece]:
        if self.geometry.numel:
            yield from elements.pieces(dimensions, self._element.size, chunk or self._chunk)

    # --- what is made of them --------------------------------------------------------------------

    def statistics(self, limit: int = 0) -> Statistics:
        """Statistics of all elements; with a ``limit``, of every n-th piece where there are more elements than that."""
        dimensions, repeated = elements.in_memory_order(self.geometry.dimensions)
        collector = collector_for(self._element)
        whole = max(1, math.prod(each.size for each in dimensions))
        every = max(1, whole // limit) if limit else 1
        if every > 1:
            self._chunk = max(self._element.size, min(self._chunk, limit * self._element.size // _SAMPLES))
        done = 0
        for number, piece in enumerate(self._pieces(dimensions)):
            if number % every:
                continue
            place = self._place(piece)
            if self._numbers:
                stored = self._numbers.elements(self._raw(piece), piece)
                self._numbers.collect(collector, stored, place, repeated)
            else:
                collector.add(self._decoded(piece), place, repeated)
            done += piece.elements
            self._progress(done / whole)
        return collector.result(self.index, every > 1)

    def _place(self, piece: elements.Piece) -> Callable[[int], int]:
        numbers = self._element.numbers
        return piece.position_of if numbers == 1 else lambda number: piece.position_of(number // numbers)

    def index(self, position: int) -> tuple[int, ...]:
        """The index of the element at a place in row-major order."""
        found = []
        for size in reversed(self.geometry.sizes):
            position, index = divmod(position, size)
            found.append(index)
        return tuple(reversed(found))

    def histogram(self, low: float, high: float) -> Histogram | None:
        """The histogram of the finite numbers; None where they are all the same one, nearer to each other than doubles
        can divide, or complex."""
        if not (math.isfinite(low) and math.isfinite(high)) or low >= high or not math.isfinite(high - low):
            return None
        step = (high - low) / BINS
        if step < sys.float_info.min or low + step == low or high - step == high:
            return None
        dimensions, repeated = elements.in_memory_order(self.geometry.dimensions)
        limit = _NUMPY_HISTOGRAM_LIMIT if self._numbers else _HISTOGRAM_LIMIT
        every = -(-math.prod(each.size for each in dimensions) // limit)
        counts = [0] * BINS
        spread = max(self._element.size, limit * self._element.size // _HISTOGRAM_PIECES)
        for number, piece in enumerate(self._pieces(dimensions, min(self._chunk, spread) if every > 1 else 0)):
            if number % every:
                continue
            for index, count in enumerate(self._counts(piece, low, high)):
                counts[index] += int(count) * repeated
        return Histogram(low, high, tuple(counts), every > 1)

    def _counts(self, piece: elements.Piece, low: float, high: float) -> Sequence[int]:
        if self._numbers:
            found: Sequence[int] = self._numbers.counts(
                self._numbers.elements(self._raw(piece), piece), low, high, BINS
            )
            return found
        counts = [0] * BINS
        scale = BINS / (high - low)
        for number in self._decoded(piece):
            if math.isfinite(number):
                counts[min(BINS - 1, int((number - low) * scale))] += 1
        return counts

    def values(self) -> Any:
        """Nested lists of all numbers, as ``tolist()`` gives them. For small tensors."""
        numbers = [number for piece in self._pieces(self.geometry.dimensions) for number in self._decoded(piece)]
        sizes = self.geometry.sizes
        return _nested(numbers, sizes if self._element.numbers == 1 else (*sizes, self._element.numbers))

    def values_if_few(self, limit: int) -> Any:
        """The same; None where there are more than ``limit``, or more empty lists: sizes may be [1 << 40, 0]."""
        sizes = self.geometry.sizes
        lists = math.prod(sizes[: sizes.index(0)]) if 0 in sizes else 0
        return self.values() if max(self.geometry.numel, lists) <= limit else None

    def stored(self) -> Iterator[bytes]:
        """The bytes of all elements in row-major order, piece by piece, as a file wants them.

        Conjugate and negative bits are applied; quantised numbers stay as they are.
        """
        done = 0
        for piece in self._pieces(self.geometry.dimensions):
            yield self._applied(self._gathered(piece))
            done += piece.elements
            self._progress(done / self.geometry.numel)

    def _applied(self, raw: bytes) -> bytes:
        """The values with the signs that the conjugate and negative bits turn around: the top bit of each part."""
        if not (self._conjugate or self._negative):
            return raw
        found = bytearray(raw)
        if self._element.kind != "complex":
            return _flipped(found, self._element.size, self._element.size - 1)
        size = self._element.size
        if self._negative:
            found = bytearray(_flipped(found, size, size // 2 - 1))
        return _flipped(found, size, size - 1) if self._conjugate != self._negative else bytes(found)


def _flipped(raw: bytearray, step: int, top: int) -> bytes:
    raw[top::step] = bytes(byte ^ 0x80 for byte in raw[top::step])
    return bytes(raw)


def _nested(numbers: Sequence[elements.Number], sizes: Sequence[int]) -> Any:
    if not sizes:
        return numbers[0] if numbers else None
    inner = math.prod(sizes[1:])
    return [_nested(numbers[at * inner : (at + 1) * inner], sizes[1:]) for at in range(sizes[0])]


def _float32(number: float) -> float:
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def fits(geometry: Geometry, start: int, end: int) -> bool:
    """All elements are in the memory from ``start`` to ``end``."""
    if not geometry.numel:
        return True
    last = geometry.address + elements.span_of(geometry.dimensions) * geometry.element.size
    return start <= geometry.address and last <= end
