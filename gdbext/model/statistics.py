"""Statistics and histogram of the numbers in a tensor."""

from __future__ import annotations

from gdbext.model.record import Record


class Histogram(Record):
    """How often finite numbers fall into equal parts of the range from the lowest to the highest."""

    low: float
    high: float
    counts: tuple[int, ...]
    sampled: bool = False
    """Counted over a part of the elements only."""

    @property
    def total(self) -> int:
        """How many numbers were counted."""
        return sum(self.counts)


class Statistics(Record):
    """Of all elements; NaNs are counted and take no part in the rest, infinities do.

    ``minimum`` and ``maximum`` are None for complex numbers and where there is no number, ``std`` (with Bessel's
    correction, as ``torch.std``) for fewer than two.
    """

    numel: int
    minimum: float | None
    maximum: float | None
    mean: complex | None
    std: float | None
    nan: int
    inf: int
    zeros: int
    first_nan: tuple[int, ...] | None = None
    """Its index, in row-major order the first."""
    first_inf: tuple[int, ...] | None = None
    sampled: bool = False
    """Of a part of the elements only."""
    finite: tuple[float, float] | None = None
    """The lowest and the highest finite number; None where there is none, and for complex numbers."""
