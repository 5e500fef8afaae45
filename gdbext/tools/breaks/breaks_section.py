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
    """The user's request: a place and patterns of operators; ``key`` and ``has`` are key names, None for any.

    With ``continue_`` a stop is reported and the process runs on.
    """

    where: str
    op: tuple[str, ...]
    key: str | None = None
    has: str | None = None
    continue_: bool = False
    why: Internal[bool] = False


@dataclass(frozen=True)
class PlacedBreakpoint:
    """A breakpoint by the debugger's ``number``. One without ``address`` stands for what is not there yet.

    ``place`` names the function, ``condition`` is in the debugger's language. ``waits_for`` says what must be
    registered; a pending one without it waits for torch.
    """

    number: int
    address: Hexadecimal | None
    op: str | None
    event: str | None
    place: str
    waits_for: str | None = None
    condition: str | None = None
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
    """``deleted`` is how many breakpoints were deleted on request, ``ending`` why the process stopped that was run."""

    name: ClassVar[str] = "breaks"
    requests: tuple[RequestedBreakpoints, ...]
    notes: tuple[str, ...] = ()
    deleted: int | None = None
    ending: Ending | None = None
