"""Minimum, maximum, mean and deviation of numbers that come in pieces; NaNs, infinities and zeros are counted.

Integers are summed exactly. Floating-point numbers are summed exactly within a piece (``math.fsum``), and pieces are
joined as Chan, Golub and LeVeque do (Algorithms for Computing the Sample Variance, 1983), in double precision, as
``t.double().mean()`` and ``.std()`` do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple

from gdbext.tools.tensor.elements import ElementType
from gdbext.torch.values.value_text import Statistics


class Moments(NamedTuple):
    """Moments of finite numbers: how many, their mean, the sum of squared deviations from it."""

    number: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    def joined(self, other: Moments) -> Moments:
        """The moments of both sets together."""
        if not other.number:
            return self
        if not self.number:
            return other
        count = self.number + other.number
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.number / count)
        between = apart * apart * (self.number * (other.number / count))
        return Moments(count, mean, self.deviation + other.deviation + between)

    def repeated(self, times: int) -> Moments:
        """The moments of a set with each number so many times."""
        return Moments(self.number * times, self.mean, self.deviation * times)


class Tally(NamedTuple):
    """The contribution of one piece of floating-point numbers; positions are numbers within it."""

    moments: Moments
    minimum: float | None
    maximum: float | None
    zeros: int
    subnormals: int = 0
    nans: Sequence[int] = ()
    plus: Sequence[int] = ()
    minus: Sequence[int] = ()


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
        """Positions, in the order that ``place`` gives."""

    @abstractmethod
    def add(self, numbers: Sequence[Any], place: Any, repeated: int) -> None:
        """Take in a piece; ``place(number)`` is the position of its element ``number``."""

    @abstractmethod
    def mean(self) -> complex | None:
        """The mean of all but NaNs."""

    @abstractmethod
    def std(self) -> float | None:
        """The standard deviation, with Bessel's correction."""

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

    def finite(self) -> tuple[float, float] | None:
        """The lowest and the highest finite number."""
        return None if self.minimum is None else (self.minimum, self.maximum)

    def extremes(self, low: Any, high: Any) -> None:
        """The lowest and highest number of a piece; None where it has none."""
        if low is not None:
            self.minimum = low if self.minimum is None else min(self.minimum, low)
            self.maximum = high if self.maximum is None else max(self.maximum, high)


class IntegerCollector(Collector):
    """Collects integers with exact sums."""

    def __init__(self) -> None:
        super().__init__()
        self._sum = 0
        self._squares = 0

    def add(self, numbers: Sequence[Any], place: Any, repeated: int) -> None:
        """Add a piece of integers, or of booleans."""
        del place
        self.add_sums(len(numbers), sum(numbers), sum(map(mul, numbers, numbers)), repeated)
        self.zeros += numbers.count(0) * repeated
        self.extremes(min(numbers), max(numbers))

    def add_sums(self, count: int, total: int, squares: int, repeated: int) -> None:
        """Sums of a piece that somebody else made."""
        self.count += count * repeated
        self._sum += total * repeated
        self._squares += squares * repeated

    def mean(self) -> complex | None:
        """The mean, which is rounded once."""
        return self._sum / self.count if self.count else None

    def std(self) -> float | None:
        """The deviation, from the exact variance."""
        if self.count < 2:
            return None
        squares = self._squares * self.count - self._sum * self._sum
        return math.sqrt(squares / (self.count * (self.count - 1)))


class FloatCollector(Collector):
    """Floating-point numbers of any width."""

    def __init__(self, least_normal: float = 0.0) -> None:
        """``least_normal``: the smallest normal number of the type; 0 where nobody counts what is smaller."""
        super().__init__()
        self.least_normal = least_normal
        self._moments = Moments()
        self._plus = 0
        self._minus = 0
        self._finite: tuple[float, float] | None = None

    def add(self, numbers: Sequence[Any], place: Any, repeated: int) -> None:
        """Add a piece of floating-point numbers."""
        self.add_tally(tally(numbers, self.least_normal), len(numbers), place, repeated)

    def add_tally(self, found: Tally, count: int, place: Any, repeated: int) -> None:
        """A piece that somebody else went through."""
        self.count += count * repeated
        self.zeros += found.zeros * repeated
        self.subnormals += found.subnormals * repeated
        self._moments = self._moments.joined(found.moments.repeated(repeated))
        self.extremes(found.minimum, found.maximum)
        if found.minimum is not None and found.maximum is not None:
            low, high = self._finite or (found.minimum, found.maximum)
            self._finite = min(low, found.minimum), max(high, found.maximum)
        self.nans += len(found.nans) * repeated
        self._plus += len(found.plus) * repeated
        self._minus += len(found.minus) * repeated
        self.infinities = self._plus + self._minus
        if found.plus:
            self.extremes(math.inf, math.inf)
        if found.minus:
            self.extremes(-math.inf, -math.inf)
        self.first_nan = _first(self.first_nan, found.nans, place)
        self.first_inf = _first(self.first_inf, [*found.plus, *found.minus], place)

    def finite(self) -> tuple[float, float] | None:
        """The numbers without the infinities."""
        return self._finite

    def mean(self) -> complex | None:
        """The mean, as IEEE 754 adds."""
        if self._plus or self._minus:
            return math.nan if self._plus and self._minus else math.inf if self._plus else -math.inf
        return self._moments.mean if self._moments.number else None

    def std(self) -> float | None:
        """NaN where there is an infinity."""
        if self._moments.number + self._plus + self._minus < 2:
            return None
        if self._plus or self._minus:
            return math.nan
        return math.sqrt(self._moments.deviation / (self._moments.number - 1))


class ComplexCollector(Collector):
    """Real and imaginary parts apart; the variance is the sum of both, as in ``torch.var``."""

    def __init__(self) -> None:
        super().__init__()
        self._real = FloatCollector()
        self._imaginary = FloatCollector()

    def add(self, numbers: Sequence[Any], place: Any, repeated: int) -> None:
        """Complex numbers; one with a NaN in either part is one, and so is one with an infinity and no NaN."""
        self.count += len(numbers) * repeated
        self.zeros += numbers.count(0) * repeated
        nans = [index for index, number in enumerate(numbers) if number != number]
        infinite = [index for index, number in enumerate(numbers) if _is_infinite(number)]
        self.nans += len(nans) * repeated
        self.infinities += len(infinite) * repeated
        self.first_nan = _first(self.first_nan, nans, place)
        self.first_inf = _first(self.first_inf, infinite, place)
        whole = [number for number in numbers if number == number] if nans else numbers
        if whole:
            self._real.add([number.real for number in whole], place, repeated)
            self._imaginary.add([number.imag for number in whole], place, repeated)

    def mean(self) -> complex | None:
        """The mean of both parts."""
        real, imaginary = self._real.mean(), self._imaginary.mean()
        return None if real is None or imaginary is None else complex(real.real, imaginary.real)

    def std(self) -> float | None:
        """The deviation, a real number."""
        real, imaginary = self._real.std(), self._imaginary.std()
        return None if real is None or imaginary is None else math.hypot(real, imaginary)


LEAST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""The smallest positive normal number of each type (IEEE 754; c10/util/BFloat16.h)."""


def collector_for(element: ElementType) -> Collector:
    """The one for numbers of that kind; quantised ones are floats."""
    if element.kind == "complex":
        return ComplexCollector()
    if element.kind == "float" or element.is_quantized:
        return FloatCollector(LEAST_NORMAL.get(element.dtype, 0.0))
    return IntegerCollector()


def tally(numbers: Sequence[float], least_normal: float = 0.0) -> Tally:
    """A piece of floats, with nothing but Python."""
    total = _sum(numbers)
    found = _finite(numbers, total) if math.isfinite(total) else _with_outsiders(numbers)
    small = sum(1 for each in numbers if -least_normal < each < least_normal) if least_normal else found.zeros
    return found._replace(subnormals=small - found.zeros)


def _finite(numbers: Sequence[float], total: float) -> Tally:
    if not numbers:
        return Tally(Moments(), None, None, 0)
    mean = total / len(numbers)
    apart = [number - mean for number in numbers]
    moments = Moments(len(numbers), mean, _sum(list(map(mul, apart, apart))))
    return Tally(moments, min(numbers), max(numbers), numbers.count(0.0))


def _with_outsiders(numbers: Sequence[float]) -> Tally:
    finite = [number for number in numbers if math.isfinite(number)]
    found = _finite(finite, _sum(finite))
    if len(finite) == len(numbers):
        return found
    return found._replace(
        nans=[index for index, number in enumerate(numbers) if number != number],
        plus=[index for index, number in enumerate(numbers) if number == math.inf],
        minus=[index for index, number in enumerate(numbers) if number == -math.inf],
    )


def _is_infinite(number: complex) -> bool:
    return number == number and (math.isinf(number.real) or math.isinf(number.imag))


def _sum(numbers: Sequence[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # too large for a double, or infinities of both signs
        return sum(numbers)


def _first(known: int | None, numbers: Sequence[int], place: Any) -> int | None:
    if not numbers:
        return known
    here: int = min(map(place, numbers))
    return here if known is None else min(known, here)
