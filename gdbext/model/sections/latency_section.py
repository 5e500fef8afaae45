"""How long the calls of operators took: ``dispatch-top --latency``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.dispatch.dispatch_frame import DispatchKeySet
from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class LatencyBucket:
    """Calls that took at least ``from_us`` and less than ``to_us`` microseconds."""

    from_us: float
    to_us: float
    count: int


@dataclass(frozen=True)
class LatencyRow:
    """One operator with one keyset; None is not known. Times are microseconds from the lookup to the return."""

    op: str | None
    overload: str | None
    event: str | None
    keyset: DispatchKeySet | None
    key: str | None
    kernel: str | None
    count: int
    """Calls that returned."""
    not_returned: int
    """Calls that are still inside, or were left by an exception, since the probes are there."""
    mean_us: float | None
    p50_us: float | None
    """Half of them took less: the upper edge of a bucket, as in the next two."""
    p90_us: float | None
    p99_us: float | None
    histogram: tuple[LatencyBucket, ...]
    """Buckets with calls in them, ascending; each is a quarter of a power of two nanoseconds."""


@dataclass(frozen=True)
class LatencySection(Section):
    """The rows, most calls first."""

    name: ClassVar[str] = "latency"
    seconds: float
    engine: str
    lost: int
    """Calls that were seen and not counted."""
    places: int
    """Probes that were placed."""
    rows: tuple[LatencyRow, ...]
    more: int = 0
    """Rows that are left out."""
