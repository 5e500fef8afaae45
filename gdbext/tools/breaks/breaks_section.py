"""The breakpoints of dispatch-break, as it reports them.

``breaks`` of a report as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gdbext.diagnosis.report import Ending
from gdbext.diagnosis.report.json_report import ending
from gdbext.engine.vocabulary import Section


@dataclass(frozen=True)
class BreakRequest:
    """The user's request: a place and patterns of operators; ``key`` and ``has`` are key names, "" for any.

    With ``go_on`` a stop is reported and the process runs on.
    """

    where: str
    patterns: tuple[str, ...]
    key: str = ""
    has: str = ""
    go_on: bool = False
    why: bool = False


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

    def document(self, why: bool) -> dict[str, Any]:
        """The section, as the JSON document has it."""
        return document(self, why)


def document(section: BreaksSection, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """All requests with their breakpoints."""
    return {
        "requests": [_request_json(each) for each in section.requests],
        "notes": list(section.notes),
        "deleted": section.deleted,
        "ending": None if section.ending is None else ending(section.ending),
    }


def _request_json(requested: RequestedBreakpoints) -> dict[str, Any]:
    request = requested.request
    return {
        "where": request.where,
        "op": list(request.patterns),
        "key": request.key or None,
        "has": request.has or None,
        "continue": request.go_on,
        "breakpoints": [_breakpoint(each) for each in requested.breakpoints],
    }


def _breakpoint(one: PlacedBreakpoint) -> dict[str, Any]:
    return {
        "number": one.number,
        "pending": one.address is None,
        "address": None if one.address is None else f"{one.address:#x}",
        "op": one.op,
        "event": one.event,
        "place": one.place,
        "waits_for": one.waits_for,
        "condition": one.condition,
        "hits": one.hits,
    }
