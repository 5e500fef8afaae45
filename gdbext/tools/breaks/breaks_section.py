"""The breakpoints of dispatch-break, as it reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Ending
from gdbext.engine.vocabulary import Section, json_member

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Hexadecimal, Inline, Internal


@dataclass(frozen=True)
class BreakRequest:
    """The user's request."""

    where: str
    """One of PLACES."""
    op: tuple[str, ...]
    """Patterns of operators."""
    key: str | None = None
    """The highest key of the keyset."""
    has: str | None = None
    """A key in the keyset."""
    continue_: bool = False
    """Report each stop and resume the process."""
    why: Internal[bool] = False
    """Report the evidence, too (--why)."""


@dataclass(frozen=True)
class PlacedBreakpoint:
    """A breakpoint."""

    number: int
    """The debugger's number."""
    address: Hexadecimal | None
    """None if it is pending."""
    op: str | None
    event: str | None
    place: str
    """The function."""
    waits_for: str | None = None
    """What must be registered before a pending breakpoint is set; without it, torch must be loaded."""
    condition: str | None = None
    """In the debugger's language."""
    hits: int = 0

    @json_member(after="number")
    def pending(self) -> bool:
        return self.address is None


@dataclass(frozen=True)
class RequestedBreakpoints:
    """A request, and what was set for it."""

    request: Inline[BreakRequest]
    breakpoints: tuple[PlacedBreakpoint, ...]


@dataclass(frozen=True)
class BreaksSection(Section):
    """The breakpoints that were set or listed."""

    name: ClassVar[str] = "breaks"
    requests: tuple[RequestedBreakpoints, ...]
    notes: tuple[str, ...] = ()
    deleted: int | None = None
    """Number of breakpoints that were deleted on request."""
    ending: Ending | None = None
    """Why the run of the process ended."""
