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
from collections.abc import Callable, Sequence
from operator import mul
from typing import Any, NamedTuple

from gdbext.tools.tensor.elements import ARRAY_CODES, ElementType, Piece, code_values
from gdbext.torch.values.value_text import Statistics

PositionOf = Callable[[int], int]
"""The position in the tensor's row-major order of a piece's element, given the element's index in the piece."""


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

    moments: Moments = Moments()
    minimum: float | None = None
    maximum: float | None = None
    zeros: int = 0
    subnormals: int = 0
    nans: Sequence[int] = ()
    plus: Sequence[int] = ()
    minus: Sequence[int] = ()


class Collector(ABC):
    """Takes in the pieces of a tensor and gives its statistics.

    Each number of a piece counts ``repeated`` times: the elements along an expanded dimension are read only once.
    """

    def __init__(self) -> None:
        self.count = self.zeros = self.subnormals = self.nans = self.infinities = 0
        self.finite: tuple[Any, Any] | None = None  # the lowest and the highest finite number
        self.first_nan: int | None = None
        self.first_inf: int | None = None  # positions in row-major order

    @abstractmethod
    def add(self, numbers: Sequence[Any], position_of: PositionOf, repeated: int) -> None:
        """Take in a piece."""

    @abstractmethod
    def mean(self) -> complex | None:
        """The mean of all but NaNs."""

    @abstractmethod
    def std(self) -> float | None:
        """The standard deviation, with Bessel's correction."""

    def extremes(self) -> tuple[Any, Any]:
        """(minimum, maximum) of all but NaNs; None without numbers, and for complex ones."""
        return self.finite or (None, None)

    def result(self, index: Callable[[int], tuple[int, ...]], sampled: bool = False) -> Statistics:
        """The statistics of all pieces. ``index`` turns a position into the element's index; ``sampled``: the pieces
        are not the whole tensor."""
        minimum, maximum = self.extremes()
        return Statistics(
            numel=self.count,
            min=minimum,
            max=maximum,
            mean=self.mean(),
            std=self.std(),
            nan=self.nans,
            inf=self.infinities,
            zeros=self.zeros,
            first_nan=None if self.first_nan is None else index(self.first_nan),
            first_inf=None if self.first_inf is None else index(self.first_inf),
            sampled=sampled,
            finite=self.finite,
            subnormals=self.subnormals,
        )

    def add_finite(self, low: Any, high: Any) -> None:
        """Take in the lowest and the highest finite number of a piece."""
        minimum, maximum = self.finite or (low, high)
        self.finite = min(low, minimum), max(high, maximum)

    def add_non_finite(
        self, nans: Sequence[int], infinities: Sequence[int], position_of: PositionOf, repeated: int
    ) -> None:
        """Count the NaNs and infinities at these indices of a piece."""
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

    def add(self, numbers: Sequence[Any], position_of: PositionOf, repeated: int) -> None:
        del position_of  # no integer is a NaN
        self.add_sums(len(numbers), sum(numbers), sum(map(mul, numbers, numbers)), repeated)
        self.zeros += numbers.count(0) * repeated
        self.add_finite(min(numbers), max(numbers))

    def add_sums(self, count: int, total: int, squares: int, repeated: int) -> None:
        """Take in the sum of ``count`` numbers and the sum of their squares."""
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
    """Collects floating-point numbers of any width."""

    def __init__(self, least_normal: float = 0.0) -> None:
        """``least_normal``: the smallest normal number of the type; 0 if subnormals are not counted."""
        super().__init__()
        self.least_normal = least_normal
        self._moments = Moments()
        self._infinities: set[float] = set()  # those that occur

    def add(self, numbers: Sequence[Any], position_of: PositionOf, repeated: int) -> None:
        self.add_tally(_tally(numbers, self.least_normal), len(numbers), position_of, repeated)

    def add_tally(self, tally: Tally, count: int, position_of: PositionOf, repeated: int) -> None:
        """Take in the tally of a piece of ``count`` numbers."""
        self.count += count * repeated
        self.zeros += tally.zeros * repeated
        self.subnormals += tally.subnormals * repeated
        number, mean, deviation = tally.moments
        self._moments = self._moments.joined(Moments(number * repeated, mean, deviation * repeated))
        if tally.minimum is not None:
            self.add_finite(tally.minimum, tally.maximum)
        if tally.plus:
            self._infinities.add(math.inf)
        if tally.minus:
            self._infinities.add(-math.inf)
        self.add_non_finite(tally.nans, [*tally.plus, *tally.minus], position_of, repeated)

    def extremes(self) -> tuple[Any, Any]:
        numbers = [*(self.finite or ()), *self._infinities]
        return (min(numbers), max(numbers)) if numbers else (None, None)

    def mean(self) -> complex | None:
        """The mean, as IEEE 754 adds: NaN of infinities of both signs."""
        if self._infinities:
            return sum(self._infinities)
        return self._moments.mean if self._moments.number else None

    def std(self) -> float | None:
        """The deviation; NaN if there is an infinity."""
        if self._moments.number + self.infinities < 2:
            return None
        return math.nan if self.infinities else math.sqrt(self._moments.deviation / (self._moments.number - 1))


class ComplexCollector(Collector):
    """Collects real and imaginary parts apart; the variance is the sum of both, as in ``torch.var``."""

    def __init__(self) -> None:
        super().__init__()
        self._real = FloatCollector()
        self._imaginary = FloatCollector()

    def add(self, numbers: Sequence[Any], position_of: PositionOf, repeated: int) -> None:
        """Take in a piece. A number with a NaN in either part is a NaN; one with an infinity and no NaN is infinite."""
        self.count += len(numbers) * repeated
        self.zeros += numbers.count(0) * repeated
        nans = [index for index, number in enumerate(numbers) if number != number]
        infinite = [
            index
            for index, number in enumerate(numbers)
            if number == number and (math.isinf(number.real) or math.isinf(number.imag))
        ]
        self.add_non_finite(nans, infinite, position_of, repeated)
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
    """The tally of a piece, without numpy; ``least_normal`` as in FloatCollector."""
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
        return Tally()
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
_TYPE_CODES = {"float16": "e", "complex64": "F", "complex128": "D", "bool": "B", "bfloat16": "H"}
"""numpy's type codes for the dtypes that the module array lacks; those that both have are the same."""


def import_numpy() -> Any:
    """The module numpy, None if there is none. scripts/dispatch starts Python without its site-packages, so these are
    on sys.path only while numpy is imported."""
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
    """Decodes and tallies pieces of one dtype with numpy (``numpy``: the module)."""

    def __init__(self, numpy: Any, element: ElementType) -> None:
        self._numpy = numpy
        self._element = element
        self._codes = numpy.array(code_values(element.dtype), "f4") if element.dtype.startswith("float8") else None

    @staticmethod
    def handles(element: ElementType) -> bool:
        """Numpy has the type, or a line of code converts to one that it has."""
        dtype = element.dtype
        return dtype in _TYPE_CODES or dtype in ARRAY_CODES or dtype.startswith("float8")

    def elements(self, raw: bytes, piece: Piece) -> Any:
        """The piece's numbers as they are stored, in its order, in an array of one dimension."""
        dtype = self._element.dtype
        stored = self._numpy.frombuffer(raw, f"<{_TYPE_CODES.get(dtype) or ARRAY_CODES.get(dtype, 'B')}")
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

    def collect(self, collector: Collector, stored: Any, position_of: PositionOf, repeated: int) -> None:
        """Add ``stored``, as elements() returns it, to the collector, part by part; the rest as of Collector.add."""
        with self._numpy.errstate(all="ignore"):
            for start in range(0, len(stored), _PART):
                values = self._values(stored[start : start + _PART])

                def position(number: int, start: int = start) -> int:
                    return position_of(int(number) + start)

                if isinstance(collector, IntegerCollector):
                    self._collect_integers(collector, values, repeated)
                elif isinstance(collector, FloatCollector):
                    tally = self._tally(values, collector.least_normal)
                    collector.add_tally(tally, len(values), position, repeated)
                else:
                    collector.add(values.tolist(), position, repeated)

    def counts(self, stored: Any, low: float, high: float, bins: int) -> Any:
        """Numbers of finite elements in each of ``bins`` equal parts of the range from ``low`` to ``high``."""
        numpy = self._numpy
        values = self._values(stored).astype("f8")
        return numpy.histogram(values[numpy.isfinite(values)], bins, (low, high))[0]

    def _collect_integers(self, collector: IntegerCollector, values: Any, repeated: int) -> None:
        """Add an array to the collector: in 64 bits if the sum of squares fits them, else in Python's integers."""
        low, high = int(values.min()), int(values.max())
        if max(abs(low), abs(high)) < 1 << 23:  # squares of 65,536 of them fit 64 bits
            wide = values.astype("i8")
            total, squares = int(wide.sum()), int(self._numpy.dot(wide, wide))
        else:
            exact = values.tolist()
            total, squares = sum(exact), sum(map(mul, exact, exact))
        collector.add_sums(len(values), total, squares, repeated)
        collector.zeros += self._zeros(values) * repeated
        collector.add_finite(low, high)

    def _tally(self, values: Any, least_normal: float) -> Tally:
        """The tally of an array; ``least_normal`` as in FloatCollector."""
        numpy = self._numpy
        is_finite = numpy.isfinite(values)
        tally = self._tally_finite(values if is_finite.all() else values[is_finite])
        if tally.moments.number < len(values):
            tally = tally._replace(
                nans=numpy.flatnonzero(numpy.isnan(values)).tolist(),
                plus=numpy.flatnonzero(values == numpy.inf).tolist(),
                minus=numpy.flatnonzero(values == -numpy.inf).tolist(),
            )
        if least_normal:
            small = numpy.count_nonzero((values < least_normal) & (values > -least_normal))
            tally = tally._replace(subnormals=int(small) - tally.zeros)
        return tally

    def _tally_finite(self, values: Any) -> Tally:
        """The tally of an array of finite numbers."""
        if not len(values):
            return Tally()
        wide = values.astype("f8")
        mean = float(wide.sum()) / len(wide)
        wide -= mean
        self._numpy.multiply(wide, wide, out=wide)  # not dot(): its threads cost more than they bring
        moments = Moments(len(wide), mean, float(wide.sum()))
        return Tally(moments, float(values.min()), float(values.max()), self._zeros(values))

    def _zeros(self, values: Any) -> int:
        return int(len(values) - self._numpy.count_nonzero(values))
