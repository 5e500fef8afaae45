"""What a running process dispatches, counted over some seconds: ``dispatch-top``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.dispatch.dispatch_frame import DispatchKeySet
from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class TopRow:
    """One line: what is None is not told apart by this grouping, or is not known."""

    op: str | None
    overload: str | None
    event: str | None
    keyset: DispatchKeySet | None
    key: str | None
    kernel: str | None
    tid: int | None
    thread: str | None
    count: int
    rate: float
    """Dispatches a second."""
    mark: str = ""
    """What is odd about it ("falls through", "no kernel", "boxed fallback"), else ""."""
    line: str | None = None
    """``file:line (function)`` of the innermost Python frame; null where no Python made it, or it was not asked for."""


@dataclass(frozen=True)
class TopSection(Section):
    """The rows, most dispatches first."""

    name: ClassVar[str] = "top"
    seconds: float
    engine: str
    total: int
    lost: int
    """Dispatches that were seen and not counted: too many combinations."""
    places: int
    """Probes that were placed."""
    rows: tuple[TopRow, ...]
    more: int = 0
    """Rows that are left out."""
    page: str | None = None
    """The file of --html."""
    unseen: int = 0
    """Functions that look operators up in a way that is not recognised: what they dispatch is not counted."""
