"""``dispatch-break`` as text."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.report import Report
from gdbext.model.sections.breaks_section import BreakRequest, BreaksSection, PlacedBreakpoint
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """What was deleted, or how the process ended; then each breakpoint."""
    breaks = report.section(BreaksSection)
    if breaks.deleted is not None:
        yield f"{breaks.deleted} breakpoints deleted"
    if breaks.ending is not None:
        yield f"ended: {escape(breaks.ending.text or 'it was asked for')}"
    elif not breaks.requests and breaks.deleted is None:
        yield "no breakpoints of dispatch-break"
    for note in breaks.notes:
        yield f"note: {escape(note)}"
    for each in breaks.requests:
        yield style(_request(each.request), "bold")
        for one in each.breakpoints:
            yield _line(one)


def _request(request: BreakRequest) -> str:
    limits = "".join(f" --{name} {key}" for name, key in (("key", request.key), ("has", request.has)) if key)
    going = " --continue" if request.go_on else ""
    return f"{request.where} {escape(' '.join(request.patterns))}{limits}{going}"


def _line(one: PlacedBreakpoint) -> str:
    if one.waits_for:
        return f"  breakpoint {one.number}: pending: set when {escape(one.waits_for)}"
    if one.address is None:
        return f"  breakpoint {one.number}: pending: set when torch is loaded and used ({one.place})"
    condition = f", if {one.condition}" if one.condition else ""
    return (
        f"  breakpoint {one.number} at {one.address:#x}: {escape(one.op or '')} {one.event}: "
        f"{escape(one.place)}{condition}, {one.hits} {'hit' if one.hits == 1 else 'hits'}"
    )
