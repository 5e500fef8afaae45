"""``dispatch-break`` as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gdbext.model.report import Report
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """What was deleted, or how the process ended; then each breakpoint."""
    breaks = report.extra["breaks"]
    if breaks["deleted"] is not None:
        yield f"{breaks['deleted']} breakpoints deleted"
    if breaks["ending"] is not None:
        yield f"ended: {escape(breaks['ending']['text'] or 'it was asked for')}"
    elif not breaks["requests"] and breaks["deleted"] is None:
        yield "no breakpoints of dispatch-break"
    for note in breaks["notes"]:
        yield f"note: {escape(note)}"
    for request in breaks["requests"]:
        limits = "".join(f" --{name} {request[name]}" for name in ("key", "has") if request[name])
        going = " --continue" if request["continue"] else ""
        yield style(f"{request['where']} {escape(' '.join(request['op']))}{limits}{going}", "bold")
        for one in request["breakpoints"]:
            yield _line(one)


def _line(one: Mapping[str, Any]) -> str:
    if one["waits_for"]:
        return f"  breakpoint {one['number']}: pending: set when {escape(one['waits_for'])}"
    if one["pending"]:
        return f"  breakpoint {one['number']}: pending: set when torch is loaded and used ({one['place']})"
    condition = f", if {one['condition']}" if one["condition"] else ""
    return (
        f"  breakpoint {one['number']} at {one['address']}: {escape(one['op'])} {one['event']}: "
        f"{escape(one['place'])}{condition}, {one['hits']} hits"
    )
