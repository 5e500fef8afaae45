"""A tensor as ``dispatch-tensor`` reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gdbext.model.dispatch.dispatch_frame import DispatchKeySet
from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class Histogram:
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


@dataclass(frozen=True)
class Statistics:
    """Of all elements; NaNs are counted and take no part in the rest, infinities do.

    ``minimum`` and ``maximum`` are None for complex numbers and where there is no number, ``std`` (with Bessel's
    correction, as ``torch.std``) for fewer than two.
    """

    count: int
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


@dataclass(frozen=True)
class GradFunction:
    """The autograd node that made a tensor."""

    name: str
    sequence_nr: int | None


@dataclass(frozen=True)
class Quantization:
    """How a quantised tensor's numbers are to be read: (stored - zero_point) * scale; one of each, or one a channel."""

    scheme: str
    scale: Sequence[float]
    zero_point: Sequence[float]
    axis: int | None


@dataclass(frozen=True)
class Part:
    """A tensor that another one holds: what a wrapper wraps, the indices and values of a sparse one."""

    name: str
    address: int
    short: str
    sizes: tuple[int, ...] | None
    statistics: Statistics | None = None


@dataclass(frozen=True)
class TensorSection(Section):
    """Everything that is known of a tensor. None where something is unknown; ``problems`` says why."""

    name: ClassVar[str] = "tensor"
    label: str
    """What the user called it."""
    address: int
    implementation: str
    """Its C++ class."""
    python_type: str | None
    sizes: tuple[int | None, ...] | None
    """None for a size that is symbolic."""
    strides: tuple[int | None, ...] | None
    storage_offset: int | None
    dtype: str
    device: str | None
    layout: str
    keyset: DispatchKeySet
    numel: int | None
    requires_grad: bool | None
    is_leaf: bool | None
    is_view: bool | None
    grad_fn: GradFunction | None
    grad: str | None
    version: int | None
    names: tuple[str | None, ...] | None
    contiguity: tuple[str, ...]
    conjugate: bool
    negative: bool
    storage: StorageReport | None
    quantization: Quantization | None
    wraps: tuple[Part, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]
    """What a reader must know: why there are no values, how a wrapper is to be understood."""
    statistics: Statistics | None = None
    histogram: Histogram | None = None
    values: Any = None
    """Nested as ``tolist()`` gives them, where there are at most 64; complex ones as complex."""
    saved: str | None = None
    """The file that was written."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class StorageReport:
    """A tensor's memory."""

    address: int
    """Of the StorageImpl."""
    data: int
    size: int
    """Bytes."""
    device: str | None
    shared_by: int | None
    """References to it."""
