"""Facts that describe a tensor, beside its own fields: storage, quantiser, autograd node, statistics and histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdbext.engine.record import Record
from gdbext.torch.values.value_text import number_text


class Histogram(Record):
    """The numbers of finite elements in equal parts of the range from the lowest to the highest."""

    low: float
    high: float
    counts: tuple[int, ...]
    sampled: bool = False
    """Counted over a part of the elements only."""

    @property
    def total(self) -> int:
        """Number of elements that were counted."""
        return sum(self.counts)


class Statistics(Record):
    """Statistics of all elements; NaNs are counted and take no part in the rest, infinities do.

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
    """True if only a part of the elements was read."""
    finite: tuple[float, float] | None = None
    """The lowest and the highest finite number; None where there is none, and for complex numbers."""
    subnormals: int = 0
    """Floating-point numbers nearer to zero than the smallest normal one: processors take many times longer for each
    (torch.set_flush_denormal)."""


class GradFunction(Record):
    """The autograd node that made a tensor."""

    name: str
    sequence_nr: int | None


class Quantization(Record):
    """The reading of a quantised tensor's numbers: (stored - zero_point) * scale; one of each, or one a channel."""

    scheme: str
    scale: Sequence[float]
    zero_point: Sequence[float]
    axis: int | None


class Part(Record):
    """A tensor that another one holds: what a wrapper wraps, the indices and values of a sparse one."""

    name: str
    address: int
    short: str
    sizes: tuple[int, ...] | None
    statistics: Statistics | None = None
    values: Any = None
    """Nested lists, where they are few."""


class StorageReport(Record):
    """The memory of a tensor."""

    address: int
    """The address of the StorageImpl in memory."""
    data: int
    size: int
    """The size of the storage, in bytes."""
    device: str | None
    shared_by: int | None
    """Number of references to it."""


def statistics_text(found: Statistics) -> str:
    """One line: ``min 0.1, max 3, mean 1.2, std 0.5, 1 NaN``."""
    numbers = [("min", found.minimum), ("max", found.maximum), ("mean", found.mean), ("std", found.std)]
    counts = [("NaN", found.nan), ("Inf", found.inf), ("zero" if found.zeros == 1 else "zeros", found.zeros),
              ("subnormal" if found.subnormals == 1 else "subnormals", found.subnormals)]  # fmt: skip
    parts = [f"{name} {number_text(value)}" for name, value in numbers if value is not None]
    parts += [f"{count} {name}" for name, count in counts if count]
    return ", ".join(parts) + (" (sampled)" if found.sampled else "")
