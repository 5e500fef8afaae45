"""The breakpoints of dispatch-break, as it reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.ending import Ending
from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class BreakRequest:
    """What the user asked for: a place and patterns of operators; ``key`` and ``has`` are key names, "" for any.

    With ``go_on`` a stop is reported and the process runs on.
    """

    where: str
    patterns: tuple[str, ...]
    key: str = ""
    has: str = ""
    go_on: bool = False


@dataclass(frozen=True)
class PlacedBreakpoint:
    """A breakpoint by the debugger's ``number``. One without ``address`` stands for what is not there yet.

    ``place`` names the function, ``condition`` is in the debugger's language. ``waits_for`` says what must be
    registered; a pending one without it waits for torch.
    """

    number: int
    place: str
    hits: int
    address: int | None = None
    op: str | None = None
    event: str | None = None
    condition: str | None = None
    waits_for: str | None = None


@dataclass(frozen=True)
class RequestedBreakpoints:
    """A request, and what was set for it."""

    request: BreakRequest
    breakpoints: tuple[PlacedBreakpoint, ...]


@dataclass(frozen=True)
class BreaksSection(Section):
    """``deleted`` is how many breakpoints were deleted on request, ``ending`` why the process stopped that was run."""

    name: ClassVar[str] = "breaks"
    requests: tuple[RequestedBreakpoints, ...]
    notes: tuple[str, ...] = ()
    deleted: int | None = None
    ending: Ending | None = None
