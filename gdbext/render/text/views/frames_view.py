"""``dispatch-frames`` as text."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.report import Report
from gdbext.model.sections.frames_section import FramesSection
from gdbext.render.text.style import Style


def render(report: Report, style: Style) -> Iterator[str]:
    """One line: what bt shows from now on."""
    if report.section(FramesSection).shown:
        yield style("bt shows Python functions and passes through the dispatcher.", "bold")
    else:
        yield style("bt shows native frames only.", "bold")
