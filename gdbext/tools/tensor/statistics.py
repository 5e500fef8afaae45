"""Minimum, maximum, mean and deviation of numbers that come in pieces; NaNs, infinities and zeros are counted.

Integers are summed exactly. Floating-point numbers are summed exactly within a piece (``math.fsum``), and pieces are
joined as Chan, Golub and LeVeque do (Algorithms for Computing the Sample Variance, 1983), in double precision, as
``t.double().mean()`` and ``.std()`` do. Tensors of many elements use numpy if it can be imported, in parts that stay in
the CPU's cache.
"""

from __future__ import annotations

import math
import site
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple

from gdbext.tools.tensor.elements import ElementType, Piece, code_values
from gdbext.torch.values.value_text import Statistics


class Moments(NamedTuple):
    """Moments of finite numbers: how many, their mean, the sum of squared deviations from it."""

    number: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    def joined(self, other: Moments) -> Moments:
        """The moments of both sets together, by Chan, Golub and LeVeque."""
        if not other.number:
            return self
        if not self.number:
            return other
        count = self.number + other.number
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.number / count)
        between = apart * apart * (self.number * (other.number / count))
        return Moments(count, mean, self.deviation + other.deviation + between)


class Tally(NamedTuple):
    """The contribution of a piece of floating-point numbers; ``minimum`` and ``maximum`` of the finite numbers.
    ``nans``, ``plus`` and ``minus``: the indices, within the piece, of its NaNs and infinities."""

    moments: Moments
    minimum: float | None
    maximum: float | None
    zeros: int
    subnormals: int = 0
    nans: Sequence[int] = ()
    plus: Sequence[int] = ()
    minus: Sequence[int] = ()


NO_NUMBERS = Tally(Moments(), None, None, 0)


class Collector(ABC):
    """Takes pieces in, gives statistics. ``repeated``: how often each number of a piece counts."""

    def __init__(self) -> None:
        self.count = 0
        self.zeros = 0
        self.subnormals = 0
        self.minimum: Any = None
        self.maximum: Any = None
        self.nans = 0
        self.infinities = 0
        self.first_nan: int | None = None
        self.first_inf: int | None = None
        """Positions in row-major order."""

    @abstractmethod
    def add(self, numbers: Sequence[Any], position_of: Any, repeated: int) -> None:
        """Take in a piece; ``position_of(number)`` is the position of its element ``number`` in row-major order."""

    @abstractmethod
    def mean(self) -> complex | None:
        """The mean of all but NaNs."""

    @abstractmethod
    def std(self) -> float | None:
        """The standard deviation, with Bessel's correction."""

    def finite(self) -> tuple[float, float] | None:
        """The lowest and the highest finite number."""
        return None if self.minimum is None else (self.minimum, self.maximum)

    def result(self, index: Any, sampled: bool = False) -> Statistics:
        """``index(position)`` is the index of an element."""
        return Statistics(
            numel=self.count,
            min=self.minimum,
            max=self.maximum,
            mean=self.mean(),
            std=self.std(),
            nan=self.nans,
            inf=self.infinities,
            zeros=self.zeros,
            first_nan=None if self.first_nan is None else index(self.first_nan),
            first_inf=None if self.first_inf is None else index(self.first_inf),
            sampled=sampled,
            finite=self.finite(),
            subnormals=self.subnormals,
        )

    def add_extremes(self, low: Any, high: Any) -> None:
        """Take in the lowest and highest number of a piece; None if it has none."""
        if low is not None:
            self.minimum = low if self.minimum is None else min(self.minimum, low)
            self.maximum = high if self.maximum is None else max(self.maximum, high)

    def add_odd_ones(self, nans: Sequence[int], infinities: Sequence[int], position_of: Any, repeated: int) -> None:
        """Take in the numbers, within a piece, of its NaNs and infinities."""
        self.nans += len(nans) * repeated
        self.infinities += len(infinities) * repeated
        if nans:
            first = min(map(position_of, nans))
            self.first_nan = first if self.first_nan is None else min(self.first_nan, first)
        if infinities:
            first = min(map(position_of, infinities))
            self.first_inf = first if self.first_inf is None else min(self.first_inf, first)


class IntegerCollector(Collector):
    """Collects integers with exact sums."""

    def __init__(self) -> None:
        super().__init__()
        self._sum = 0
        self._squares = 0

    def add(self, numbers: Sequence[Any], position_of: Any, repeated: int) -> None:
        del position_of
        self.add_sums(len(numbers), sum(numbers), sum(map(mul, numbers, numbers)), repeated)
        self.zeros += numbers.count(0) * repeated
        self.add_extremes(min(numbers), max(numbers))

    def add_sums(self, count: int, total: int, squares: int, repeated: int) -> None:
        """Take in a piece whose numbers and squares are summed already."""
        self.count += count * repeated
        self._sum += total * repeated
        self._squares += squares * repeated

    def mean(self) -> complex | None:
        return self._sum / self.count if self.count else None

    def std(self) -> float | None:
        if self.count < 2:
            return None
        squares = self._squares * self.count - self._sum * self._sum
        return math.sqrt(squares / (self.count * (self.count - 1)))


class FloatCollector(Collector):
    """Floating-point numbers of any width."""

    def __init__(self, least_normal: float = 0.0) -> None:
        """``least_normal``: the smallest normal number of the type; 0 if subnormals are not counted."""
        super().__init__()
        self.least_normal = least_normal
        self._moments = Moments()
        self._plus = 0
        self._minus = 0
        self._finite: tuple[float, float] | None = None

    def add(self, numbers: Sequence[Any], position_of: Any, repeated: int) -> None:
        self.add_tally(_tally(numbers, self.least_normal), len(numbers), position_of, repeated)

    def add_tally(self, tally: Tally, count: int, position_of: Any, repeated: int) -> None:
        """Take in a piece of ``count`` numbers that is tallied already."""
        self.count += count * repeated
        self.zeros += tally.zeros * repeated
        self.subnormals += tally.subnormals * repeated
        number, mean, deviation = tally.moments
        self._moments = self._moments.joined(Moments(number * repeated, mean, deviation * repeated))
        self.add_extremes(tally.minimum, tally.maximum)
        if tally.minimum is not None and tally.maximum is not None:
            low, high = self._finite or (tally.minimum, tally.maximum)
            self._finite = min(low, tally.minimum), max(high, tally.maximum)
        self._plus += len(tally.plus) * repeated
        self._minus += len(tally.minus) * repeated
        if tally.plus:
            self.add_extremes(math.inf, math.inf)
        if tally.minus:
            self.add_extremes(-math.inf, -math.inf)
        self.add_odd_ones(tally.nans, [*tally.plus, *tally.minus], position_of, repeated)

    def finite(self) -> tuple[float, float] | None:
        return self._finite

    def mean(self) -> complex | None:
        """The mean, as IEEE 754 adds: NaN of infinities of both signs."""
        if self._plus or self._minus:
            return math.nan if self._plus and self._minus else math.inf if self._plus else -math.inf
        return self._moments.mean if self._moments.number else None

    def std(self) -> float | None:
        """The deviation; NaN if there is an infinity."""
        if self._moments.number + self.infinities < 2:
            return None
        return math.nan if self.infinities else math.sqrt(self._moments.deviation / (self._moments.number - 1))


class ComplexCollector(Collector):
    """Real and imaginary parts apart; the variance is the sum of both, as in ``torch.var``."""

    def __init__(self) -> None:
        super().__init__()
        self._real = FloatCollector()
        self._imaginary = FloatCollector()

    def add(self, numbers: Sequence[Any], position_of: Any, repeated: int) -> None:
        """A number with a NaN in either part is a NaN; one with an infinity and no NaN is infinite."""
        self.count += len(numbers) * repeated
        self.zeros += numbers.count(0) * repeated
        nans = [index for index, number in enumerate(numbers) if number != number]
        infinite = [
            index
            for index, number in enumerate(numbers)
            if number == number and (math.isinf(number.real) or math.isinf(number.imag))
        ]
        self.add_odd_ones(nans, infinite, position_of, repeated)
        whole = [number for number in numbers if number == number] if nans else numbers
        if whole:
            self._real.add([number.real for number in whole], position_of, repeated)
            self._imaginary.add([number.imag for number in whole], position_of, repeated)

    def mean(self) -> complex | None:
        real, imaginary = self._real.mean(), self._imaginary.mean()
        return None if real is None or imaginary is None else complex(real.real, imaginary.real)

    def std(self) -> float | None:
        real, imaginary = self._real.std(), self._imaginary.std()
        return None if real is None or imaginary is None else math.hypot(real, imaginary)


_LEAST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""The smallest positive normal number of each type (IEEE 754; c10/util/BFloat16.h)."""


def collector_for(element: ElementType) -> Collector:
    """The collector for numbers of that type; quantized ones are floats."""
    if element.kind == "complex":
        return ComplexCollector()
    if element.kind == "float" or element.is_quantized:
        return FloatCollector(_LEAST_NORMAL.get(element.dtype, 0.0))
    return IntegerCollector()


def _tally(numbers: Sequence[float], least_normal: float) -> Tally:
    """The tally of a piece, with nothing but Python; ``least_normal`` as of FloatCollector."""
    total = _sum(numbers)
    if math.isfinite(total):
        tally = _tally_finite(numbers, total)
    else:
        finite = [number for number in numbers if math.isfinite(number)]
        tally = _tally_finite(finite, _sum(finite))
        if len(finite) < len(numbers):  # else the sum alone is too large
            tally = tally._replace(
                nans=[index for index, number in enumerate(numbers) if number != number],
                plus=[index for index, number in enumerate(numbers) if number == math.inf],
                minus=[index for index, number in enumerate(numbers) if number == -math.inf],
            )
    if not least_normal:
        return tally
    small = sum(1 for number in numbers if -least_normal < number < least_normal)
    return tally._replace(subnormals=small - tally.zeros)


def _tally_finite(numbers: Sequence[float], total: float) -> Tally:
    """The tally of finite numbers with the sum ``total``."""
    if not numbers:
        return NO_NUMBERS
    mean = total / len(numbers)
    deviations = [number - mean for number in numbers]
    moments = Moments(len(numbers), mean, _sum(list(map(mul, deviations, deviations))))
    return Tally(moments, min(numbers), max(numbers), numbers.count(0.0))


def _sum(numbers: Sequence[float]) -> float:
    """The exact sum, rounded; an infinity or NaN if there is none."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # too large for a double, or infinities of both signs
        return sum(numbers)


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


def _collect_integers(numpy: Any, collector: IntegerCollector, values: Any, position_of: Any, repeated: int) -> None:
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


def _collect_floats(numpy: Any, collector: FloatCollector, values: Any, position_of: Any, repeated: int) -> None:
    low, high = float(values.min()), float(values.max())
    if numpy.isfinite(low) and numpy.isfinite(high):
        tally = _numpy_tally_finite(numpy, values, low, high)
    else:
        finite = values[numpy.isfinite(values)]
        tally = (
            _numpy_tally_finite(numpy, finite, float(finite.min()), float(finite.max())) if len(finite) else NO_NUMBERS
        )
        tally = tally._replace(
            nans=numpy.flatnonzero(numpy.isnan(values)).tolist(),
            plus=numpy.flatnonzero(values == numpy.inf).tolist(),
            minus=numpy.flatnonzero(values == -numpy.inf).tolist(),
        )
    if collector.least_normal:
        small = numpy.count_nonzero((values < collector.least_normal) & (values > -collector.least_normal))
        tally = tally._replace(subnormals=int(small) - tally.zeros)
    collector.add_tally(tally, len(values), position_of, repeated)


def _numpy_tally_finite(numpy: Any, values: Any, low: float, high: float) -> Tally:
    """The tally of an array of finite numbers, whose extremes are ``low`` and ``high``."""
    wide = values.astype("f8")
    mean = float(wide.sum()) / len(wide)
    wide -= mean
    numpy.multiply(wide, wide, out=wide)  # not dot(): its threads cost more than they bring
    moments = Moments(len(wide), mean, float(wide.sum()))
    return Tally(moments, low, high, int(len(values) - numpy.count_nonzero(values)))


def _collect_complex(_numpy: Any, collector: ComplexCollector, values: Any, position_of: Any, repeated: int) -> None:
    collector.add(values.tolist(), position_of, repeated)


_COLLECT: dict[Any, Any] = {
    IntegerCollector: _collect_integers,
    FloatCollector: _collect_floats,
    ComplexCollector: _collect_complex,
}
