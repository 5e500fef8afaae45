"""What a tensor is described by, beside its own fields: storage, quantiser, autograd node, other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdbext.model.record import Record
from gdbext.model.statistics import Statistics


class GradFunction(Record):
    """The autograd node that made a tensor."""

    name: str
    sequence_nr: int | None


class Quantization(Record):
    """How a quantised tensor's numbers are to be read: (stored - zero_point) * scale; one of each, or one a channel."""

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
    """A tensor's memory."""

    address: int
    """Of the StorageImpl."""
    data: int
    size: int
    """Bytes."""
    device: str | None
    shared_by: int | None
    """References to it."""
