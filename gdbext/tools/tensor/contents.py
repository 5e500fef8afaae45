"""The elements of one tensor: read in pieces, decoded, and turned into statistics, a histogram, values, or a file."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from gdbext.errors import BadData
from gdbext.tools.tensor import elements
from gdbext.tools.tensor.statistics import NumpyNumbers, collector_for
from gdbext.torch.values.value_text import Histogram, Quantization, Statistics

VALUES_LIMIT = 64
"""Elements of a tensor that is shown whole."""
BINS = 32
_NUMPY_FROM = 1 << 16
"""Elements from which on it pays to import numpy."""

ReadBytes = Callable[[int, int], bytes]
Progress = Callable[[float], None]
"""Called with the part of the elements, 0 to 1, that is done."""


class NothingToRead(BadData):
    """Raised for a tensor without elements in readable memory (meta, sparse, CUDA), which is not an error."""


class Geometry(NamedTuple):
    """The layout of the elements in memory: ``address`` of the first one, sizes and strides in elements."""

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    element: elements.ElementType

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def dimensions(self) -> tuple[elements.Dimension, ...]:
        """In row-major order."""
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
        progress: Progress = lambda _: None,
        chunk: int = 1 << 22,
    ) -> None:
        """``read(address, size)`` reads memory past all caches; ``conjugate`` and ``negative``: the tensor's lazy
        bits, which must be applied; ``numpy`` gives the module if it may be used; ``chunk``: bytes read at once."""
        self._read = read
        self.geometry = geometry
        self._element = geometry.element
        self._quantization = quantization
        self._conjugate = conjugate
        self._negative = negative
        self._progress = progress
        self._chunk = chunk
        self._numpy: NumpyNumbers | None = None
        is_plain = not (quantization or conjugate or negative)
        if is_plain and geometry.numel >= _NUMPY_FROM and NumpyNumbers.handles(self._element):
            module = numpy()
            self._numpy = NumpyNumbers(module, self._element) if module else None

    def part(self, geometry: Geometry, cut: Callable[[Quantization], Quantization]) -> Contents:
        """The contents of a part with the layout ``geometry``; ``cut`` turns the quantizer into the part's."""
        quantization = cut(self._quantization) if self._quantization else None
        return Contents(self._read, geometry, quantization, self._conjugate, self._negative)

    def _bytes(self, piece: elements.Piece) -> bytes:
        """The memory from the first element of a piece to its last."""
        size = self._element.size
        return self._read(self.geometry.address + piece.offset * size, piece.span * size)

    def _element_bytes(self, piece: elements.Piece) -> bytes:
        """The bytes of a piece's elements, one after the other. If a byte has several elements, all those bytes."""
        packed = self._element.packed
        if self._element.shares_bytes:
            return self._read(self.geometry.address + piece.offset // packed, -(-piece.span // packed))
        raw, size = self._bytes(piece), self._element.size
        if piece.is_dense:
            return raw
        return b"".join([raw[offset * size : (offset + 1) * size] for offset in piece.offsets()])

    def _decoded(self, piece: elements.Piece) -> Sequence[Any]:
        """The piece's numbers in its order, with its quantizer and the conjugate and negative bits applied."""
        element, packed = self._element, self._element.packed
        if not element.shares_bytes:
            numbers: Sequence[Any] = element.decode(self._element_bytes(piece))
        else:  # strides and offsets count elements all the same
            first, skip = divmod(piece.offset, packed)
            stored = element.decode(self._read(self.geometry.address + first, -(-(skip + piece.span) // packed)))
            numbers = [stored[skip + offset] for offset in piece.offsets()]
        if self._quantization:
            numbers = self._dequantized(numbers, piece, self._quantization)
        if self._conjugate and element.kind == "complex":
            numbers = [number.conjugate() for number in numbers]
        return [-number for number in numbers] if self._negative else numbers

    def _dequantized(self, numbers: Sequence[int], piece: elements.Piece, quantization: Quantization) -> list[float]:
        """The values as ``dequantize()`` calculates them, rounded to float32: one scale for all is float32, scales of
        channels have double precision (ATen/native/quantized/AffineQuantizer.cpp)."""
        scales, zeros, axis = quantization.scale, quantization.zero_point, quantization.axis
        if axis is None:
            scale, zero = _float32(scales[0]), zeros[0]
            return [_float32((number - zero) * scale) for number in numbers]
        below = math.prod(self.geometry.sizes[axis + 1 :])
        channels = (piece.position_of(index) // below % self.geometry.sizes[axis] for index in range(len(numbers)))
        return [_float32((number - zeros[channel]) * scales[channel]) for number, channel in zip(numbers, channels)]

    def _pieces(self, dimensions: Sequence[elements.Dimension], chunk: int = 0) -> Iterator[elements.Piece]:
        """All elements in the order of ``dimensions``, in pieces of ``chunk`` bytes (0: the usual size)."""
        if self.geometry.numel:
            yield from elements.pieces(dimensions, self._element.size, chunk or self._chunk)

    def statistics(self, limit: int = 0) -> Statistics:
        """Statistics of all elements; with a ``limit``, of every n-th piece if there are more elements than that."""
        dimensions, repeated = elements.in_memory_order(self.geometry.dimensions)
        collector = collector_for(self._element)
        whole = max(1, elements.numel_of(dimensions))
        every = max(1, whole // limit) if limit else 1
        if every > 1:
            self._chunk = max(self._element.size, min(self._chunk, limit * self._element.size // 64))
        numbers = self._element.numbers
        done = 0
        for piece in islice(self._pieces(dimensions), 0, None, every):

            def position_of(number: int, piece: elements.Piece = piece) -> int:
                return piece.position_of(number // numbers)

            if self._numpy:
                stored = self._numpy.elements(self._bytes(piece), piece)
                self._numpy.collect(collector, stored, position_of, repeated)
            else:
                collector.add(self._decoded(piece), position_of, repeated)
            done += piece.elements
            self._progress(done / whole)
        return collector.result(self.index, every > 1)

    def index(self, position: int) -> tuple[int, ...]:
        """The index of the element at a position in row-major order."""
        reversed_index = []
        for size in reversed(self.geometry.sizes):
            position, index = divmod(position, size)
            reversed_index.append(index)
        return tuple(reversed(reversed_index))

    def histogram(self, low: float, high: float) -> Histogram | None:
        """The histogram of the finite numbers, which lie between ``low`` and ``high``; None if these are equal, or too
        close or too far apart to be divided in double precision."""
        if not (math.isfinite(low) and math.isfinite(high)) or low >= high or not math.isfinite(high - low):
            return None
        step = (high - low) / BINS
        if step < sys.float_info.min or low + step == low or high - step == high:
            return None
        dimensions, repeated = elements.in_memory_order(self.geometry.dimensions)
        limit = 1 << 24 if self._numpy else 1 << 20  # elements that are counted; of more, every n-th piece
        every = max(1, -(-elements.numel_of(dimensions) // limit))
        # The pieces of a sample are many more than the bins, for numbers that are in order.
        chunk = min(self._chunk, max(self._element.size, limit * self._element.size // 500))
        counts, scale = [0] * BINS, BINS / (high - low)
        for piece in islice(self._pieces(dimensions, chunk if every > 1 else 0), 0, None, every):
            if self._numpy:
                stored = self._numpy.elements(self._bytes(piece), piece)
                for index, count in enumerate(self._numpy.counts(stored, low, high, BINS)):
                    counts[index] += int(count) * repeated
            else:
                for number in self._decoded(piece):
                    if math.isfinite(number):
                        counts[min(BINS - 1, int((number - low) * scale))] += repeated
        return Histogram(low, high, tuple(counts), every > 1)

    def values(self) -> Any:
        """Nested lists of all numbers, like ``tolist()``. For small tensors."""
        numbers = [number for piece in self._pieces(self.geometry.dimensions) for number in self._decoded(piece)]
        sizes = self.geometry.sizes
        return _nested(numbers, sizes if self._element.numbers == 1 else (*sizes, self._element.numbers))

    def values_if_few(self, limit: int) -> Any:
        """The values as of values(); None if there are more than ``limit`` of them, or of empty lists in place of them
        (sizes may be [1 << 40, 0])."""
        sizes = self.geometry.sizes
        lists = math.prod(sizes[: sizes.index(0)]) if 0 in sizes else 0
        return self.values() if max(self.geometry.numel, lists) <= limit else None

    def stored(self) -> Iterator[bytes]:
        """The bytes of all elements for a file, piece by piece, in row-major order: conjugate and negative bits are
        applied, quantized numbers stay as they are."""
        size = self._element.size
        # The bits change signs: the top bit of an element, or of the two parts of a complex one.
        tops = {size - 1: self._negative}
        if self._element.kind == "complex":
            tops = {size // 2 - 1: self._negative, size - 1: self._conjugate != self._negative}
        done = 0
        for piece in self._pieces(self.geometry.dimensions):
            raw = self._element_bytes(piece)
            if self._conjugate or self._negative:
                signed = bytearray(raw)
                for top in (top for top, is_flipped in tops.items() if is_flipped):
                    signed[top::size] = bytes(byte ^ 0x80 for byte in signed[top::size])
                raw = bytes(signed)
            yield raw
            done += piece.elements
            self._progress(done / self.geometry.numel)


def _nested(numbers: Sequence[elements.Number], sizes: Sequence[int]) -> Any:
    """The numbers, in row-major order, as nested lists of these sizes."""
    if not sizes:
        return numbers[0] if numbers else None
    inner = math.prod(sizes[1:])
    return [_nested(numbers[index * inner : (index + 1) * inner], sizes[1:]) for index in range(sizes[0])]


def _float32(number: float) -> float:
    """The nearest float32, an infinity if it is too large."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded
