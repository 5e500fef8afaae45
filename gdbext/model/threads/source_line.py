"""A line of Python source under a frame, as people want to read it beside the file's name and the line's number."""

from __future__ import annotations

from collections.abc import Mapping

from gdbext.model.record import Record


class SourceLine(Record):
    """The text of one line, without indentation and line end."""

    text: str
    changed: str = ""
    """Why the file may not hold what the process runs ("the file changed after the process started"), else ""."""


SourceLines = Mapping["tuple[str, int]", SourceLine]
"""(file as the code object names it, line number from 1) → the line."""

NO_SOURCES: SourceLines = {}
"""For reports that show no source."""
