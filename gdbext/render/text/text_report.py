"""A report as text for people: finds the command's view and joins its lines."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from gdbext.model.report import Report
from gdbext.render.text.style import Style, escape

_MOST_NAMED = 8
"""Threads that a line names."""


def render(report: Report, color: bool = False) -> str:
    """The whole text, ending in a newline."""
    style = Style(color)
    view = import_module(f"gdbext.render.text.views.{report.view}_view")
    lines = [*view.render(report, style), *_moved(report), *_errors(report, style)]
    return "\n".join(lines) + "\n"


def _moved(report: Report) -> Iterator[str]:
    """Which threads are not of one moment."""
    moved = report.target.moved if report.target is not None else ()
    if moved:
        named = ", ".join(map(str, moved[:_MOST_NAMED])) + (", …" if len(moved) > _MOST_NAMED else "")
        yield ""
        yield f"Ran on while memory was read, so that what is said of them may mix two moments: {named}"


def _errors(report: Report, style: Style) -> Iterator[str]:
    """Each error; reasons and next steps that many of them share only once."""
    if not report.errors:
        return
    yield ""
    yield style("Could not be read:", "bold")
    shown = set()
    for error in report.errors:
        where = f"{escape(error.where)}: " if error.where else ""
        yield f"  {where}{escape(error.what)}"
        for title, text in (("why", error.why), ("try", error.help)):
            if text and (title, text) not in shown:
                shown.add((title, text))
                yield f"    {title}: {escape(text)}"
