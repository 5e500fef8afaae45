"""The statistics of statistics.py by numpy, for tensors of many elements; used only if numpy can be imported.

Pieces are processed in parts that stay in the CPU's cache, so nothing as large as the tensor is made.
"""

from __future__ import annotations

import site
import sys
from typing import Any

from gdbext.tools.tensor.elements import ElementType, Piece, code_values
from gdbext.tools.tensor.statistics import (
    NO_NUMBERS,
    ComplexCollector,
    FloatCollector,
    IntegerCollector,
    Moments,
    Tally,
)

_PART = 1 << 16
"""Elements: half a megabyte of doubles."""
_TYPES = {
    "uint8": "u1",
    "int8": "i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
    "bool": "u1",
}


def import_numpy() -> Any:
    """The module; None if there is none. scripts/dispatch starts without site-packages, which are added meanwhile."""
    try:
        missing = [folder for folder in site.getsitepackages() if folder not in sys.path]
        sys.path.extend(missing)
        try:
            import numpy  # 50 ms, and it may be missing
        finally:
            sys.path[:] = [folder for folder in sys.path if folder not in missing]
    except (ImportError, OSError, AttributeError, ValueError):  # a damaged one: statistics.py works without it
        return None
    return numpy


class NumpyNumbers:
    """Decodes and tallies pieces of one dtype."""

    def __init__(self, numpy: Any, element: ElementType) -> None:
        self._numpy = numpy
        self._element = element
        self._codes = numpy.array(code_values(element.dtype), "f4") if element.dtype.startswith("float8") else None

    @staticmethod
    def handles(element: ElementType) -> bool:
        """Numpy has the type, or a line of code converts to one that it has."""
        return element.dtype in _TYPES or element.dtype == "bfloat16" or element.dtype.startswith("float8")

    def elements(self, raw: bytes, piece: Piece) -> Any:
        """The piece's numbers as they are stored, in its order, in an array of one dimension."""
        stored = self._numpy.frombuffer(raw, _TYPES.get(self._element.dtype) or f"<u{self._element.size}")
        if piece.is_dense:
            return stored
        shape = [dimension.size for dimension in piece.dimensions]
        steps = [dimension.stride * self._element.size for dimension in piece.dimensions]
        return self._numpy.lib.stride_tricks.as_strided(stored, shape, steps, writeable=False).reshape(-1)

    def _values(self, stored: Any) -> Any:
        """The values in a type that numpy calculates with."""
        if self._codes is not None:
            return self._codes[stored]
        if self._element.dtype == "bfloat16":
            return (stored.astype("u4") << 16).view("f4")
        if self._element.dtype == "bool":
            return (stored != 0).view("u1")
        return stored.astype("f4") if self._element.dtype == "float16" else stored

    def collect(self, collector: Any, stored: Any, position_of: Any, repeated: int) -> None:
        """Add all of them to a collector, part by part; arguments as of Collector.add."""
        add = _COLLECT[type(collector)]
        with self._numpy.errstate(all="ignore"):
            for start in range(0, len(stored), _PART):
                values = self._values(stored[start : start + _PART])
                add(self._numpy, collector, values, lambda number: position_of(int(number) + start), repeated)  # noqa: B023

    def counts(self, stored: Any, low: float, high: float, bins: int) -> Any:
        """Numbers of finite elements in each bin of the range."""
        numpy = self._numpy
        values = self._values(stored).astype("f8")
        return numpy.histogram(values[numpy.isfinite(values)], bins, (low, high))[0]


def _integers(numpy: Any, collector: IntegerCollector, values: Any, position_of: Any, repeated: int) -> None:
    del position_of
    low, high = int(values.min()), int(values.max())
    collector.zeros += int(len(values) - numpy.count_nonzero(values)) * repeated
    if max(abs(low), abs(high)) < 1 << 23:  # squares of 65,536 of them fit 64 bits
        wide = values.astype("i8")
        total, squares = int(wide.sum()), int(numpy.dot(wide, wide))
    else:
        exact = values.tolist()
        total, squares = sum(exact), sum(number * number for number in exact)
    collector.add_sums(len(values), total, squares, repeated)
    collector.add_extremes(low, high)


def _floats(numpy: Any, collector: FloatCollector, values: Any, position_of: Any, repeated: int) -> None:
    low, high = float(values.min()), float(values.max())
    if numpy.isfinite(low) and numpy.isfinite(high):
        tally = _finite(numpy, values, low, high)
    else:
        finite = values[numpy.isfinite(values)]
        tally = _finite(numpy, finite, float(finite.min()), float(finite.max())) if len(finite) else NO_NUMBERS
        tally = tally._replace(
            nans=numpy.flatnonzero(numpy.isnan(values)).tolist(),
            plus=numpy.flatnonzero(values == numpy.inf).tolist(),
            minus=numpy.flatnonzero(values == -numpy.inf).tolist(),
        )
    if collector.least_normal:
        small = numpy.count_nonzero((values < collector.least_normal) & (values > -collector.least_normal))
        tally = tally._replace(subnormals=int(small) - tally.zeros)
    collector.add_tally(tally, len(values), position_of, repeated)


def _finite(numpy: Any, values: Any, low: float, high: float) -> Tally:
    wide = values.astype("f8")
    mean = float(wide.sum()) / len(wide)
    wide -= mean
    numpy.multiply(wide, wide, out=wide)  # not dot(): its threads cost more than they bring
    moments = Moments(len(wide), mean, float(wide.sum()))
    return Tally(moments, low, high, int(len(values) - numpy.count_nonzero(values)))


def _complex(_numpy: Any, collector: ComplexCollector, values: Any, position_of: Any, repeated: int) -> None:
    collector.add(values.tolist(), position_of, repeated)


_COLLECT: dict[Any, Any] = {IntegerCollector: _integers, FloatCollector: _floats, ComplexCollector: _complex}
