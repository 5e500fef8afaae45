"""``breaks`` of a report as JSON."""

from __future__ import annotations

from typing import Any

from gdbext.model.sections.breaks_section import BreaksSection, PlacedBreakpoint, RequestedBreakpoints
from gdbext.render.json.documents.trace_document import ending


def document(section: BreaksSection, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """All requests with their breakpoints."""
    return {
        "requests": [_request(each) for each in section.requests],
        "notes": list(section.notes),
        "deleted": section.deleted,
        "ending": None if section.ending is None else ending(section.ending),
    }


def _request(requested: RequestedBreakpoints) -> dict[str, Any]:
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
