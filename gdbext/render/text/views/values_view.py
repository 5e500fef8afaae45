"""The end of ``dispatch-values`` as text."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.report import Report
from gdbext.model.sections.values_section import ValuesSection
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """One line, and what must be known."""
    values = report.section(ValuesSection)
    where = f", {values.files} files in {escape(values.folder)}" if values.folder is not None else ""
    ended = escape(values.ending.text or "it was asked for")
    yield style(f"{values.count} call{'s' if values.count != 1 else ''} seen{where}; ended: {ended}", "bold")
    yield from (f"  note: {escape(note)}" for note in values.notes)
