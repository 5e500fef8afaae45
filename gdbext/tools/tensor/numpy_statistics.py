"""The statistics of statistics.py by numpy, for tensors of many elements. Only where numpy can be imported.

Pieces are gone through in parts that stay in the processor's cache, so nothing as large as the tensor is made.
"""

from __future__ import annotations

import site
import sys
from typing import Any

from gdbext.tools.tensor.elements import ElementType, Piece, code_values
from gdbext.tools.tensor.statistics import ComplexCollector, FloatCollector, IntegerCollector, Moments, Tally

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
    """The module, None where there is none. scripts/dispatch starts without site-packages, which are added for it."""
    try:
        missing = [folder for folder in site.getsitepackages() if folder not in sys.path]
        sys.path.extend(missing)
        try:
            import numpy  # 50 ms, and it may be missing
        finally:
            sys.path[:] = [folder for folder in sys.path if folder not in missing]
    except (ImportError, OSError, AttributeError, ValueError):  # one that is damaged: there is a way without it
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
        """Numbers that numpy can be taught in a line; the rare ones are not."""
        return element.dtype in _TYPES or element.dtype == "bfloat16" or element.dtype.startswith("float8")

    def elements(self, raw: bytes, piece: Piece) -> Any:
        """The piece's numbers, one dimension, in its order."""
        numpy = self._numpy
        stored = numpy.frombuffer(raw, _TYPES.get(self._element.dtype) or f"<u{self._element.size}")
        if not piece.is_dense:
            shape = [each.size for each in piece.dimensions]
            steps = [each.stride * self._element.size for each in piece.dimensions]
            stored = numpy.lib.stride_tricks.as_strided(stored, shape, steps, writeable=False).reshape(-1)
        return stored

    def _values(self, stored: Any) -> Any:
        """The values as a type that numpy calculates with."""
        if self._codes is not None:
            return self._codes[stored]
        if self._element.dtype == "bfloat16":
            return (stored.astype("u4") << 16).view("f4")
        if self._element.dtype == "bool":
            return (stored != 0).view("u1")
        return stored.astype("f4") if self._element.dtype == "float16" else stored

    def collect(self, collector: Any, stored: Any, place: Any, repeated: int) -> None:
        """Add all of them to a collector, part by part."""
        add = _COLLECT[type(collector)]
        with self._numpy.errstate(all="ignore"):
            for start in range(0, len(stored), _PART):
                values = self._values(stored[start : start + _PART])
                add(self._numpy, collector, values, _shifted(place, start), repeated)

    def counts(self, stored: Any, low: float, high: float, bins: int) -> Any:
        """Numbers of finite elements in each part of the range."""
        numpy = self._numpy
        values = self._values(stored).astype("f8")
        return numpy.histogram(values[numpy.isfinite(values)], bins, (low, high))[0]


def _shifted(place: Any, start: int) -> Any:
    return lambda number: place(int(number) + start)


def _integers(numpy: Any, collector: IntegerCollector, values: Any, place: Any, repeated: int) -> None:
    del place
    low, high = int(values.min()), int(values.max())
    collector.zeros += int(len(values) - numpy.count_nonzero(values)) * repeated
    if max(abs(low), abs(high)) < 1 << 23:  # squares of 65,536 of them fit 64 bits
        wide = values.astype("i8")
        total, squares = int(wide.sum()), int(numpy.dot(wide, wide))
    else:
        exact = values.tolist()
        total, squares = sum(exact), sum(each * each for each in exact)
    collector.add_sums(len(values), total, squares, repeated)
    collector.extremes(low, high)


def _floats(numpy: Any, collector: FloatCollector, values: Any, place: Any, repeated: int) -> None:
    low, high = float(values.min()), float(values.max())
    count = len(values)
    if not (numpy.isfinite(low) and numpy.isfinite(high)):
        _with_outsiders(numpy, collector, values, place, repeated)
        return
    found = _finite(numpy, values, low, high)
    collector.add_tally(_with_subnormals(numpy, collector, values, found), count, place, repeated)


def _with_subnormals(numpy: Any, collector: FloatCollector, values: Any, found: Tally) -> Tally:
    if not collector.least_normal:
        return found
    small = numpy.count_nonzero((values < collector.least_normal) & (values > -collector.least_normal))
    return found._replace(subnormals=int(small) - found.zeros)


def _finite(numpy: Any, values: Any, low: float, high: float) -> Tally:
    wide = values.astype("f8")
    mean = float(wide.sum()) / len(wide)
    wide -= mean
    numpy.multiply(wide, wide, out=wide)  # not dot(): its threads cost more than they bring
    moments = Moments(len(wide), mean, float(wide.sum()))
    return Tally(moments, low, high, int(len(values) - numpy.count_nonzero(values)))


def _with_outsiders(numpy: Any, collector: FloatCollector, values: Any, place: Any, repeated: int) -> None:
    finite = values[numpy.isfinite(values)]
    found = Tally(Moments(), None, None, 0)
    if len(finite):
        found = _finite(numpy, finite, float(finite.min()), float(finite.max()))
    found = found._replace(
        nans=numpy.flatnonzero(numpy.isnan(values)).tolist(),
        plus=numpy.flatnonzero(values == numpy.inf).tolist(),
        minus=numpy.flatnonzero(values == -numpy.inf).tolist(),
    )
    collector.add_tally(_with_subnormals(numpy, collector, values, found), len(values), place, repeated)


def _complex(numpy: Any, collector: ComplexCollector, values: Any, place: Any, repeated: int) -> None:
    del numpy
    collector.add(values.tolist(), place, repeated)


_COLLECT: dict[Any, Any] = {IntegerCollector: _integers, FloatCollector: _floats, ComplexCollector: _complex}
