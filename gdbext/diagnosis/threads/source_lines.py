"""Lines of Python source: read from the files that the process itself sees, as far as they are still the same.

They are shown as people want to read them beside the file's name and the line's number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.engine.targets.base_target import Target


class SourceLine(NamedTuple):
    """The text of one line, without indentation and line end."""

    text: str
    changed: str = ""
    """The reason why the file may not hold what the process runs ("the file changed after the process started"), else
    ""."""


SourceLines = Mapping["tuple[str, int]", SourceLine]
"""(file as the code object names it, line number from 1) → the line."""

NO_SOURCES: SourceLines = {}
"""The source lines of reports that show none."""


MAX_FILE = 8 << 20
"""Bytes of the largest file that is read: generated code may be long, source is not."""
MAX_FILES = 200
MAX_LINE = 300
"""Characters of a line that are kept."""
_CLOCK_ERROR = 0.05
"""Seconds: a process's start is known in hundredths, a file's time in ticks of the kernel."""
_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
"""PEP 263's declaration of a source file's encoding, on one of the first two lines."""


def source_lines(target: Target, threads: Iterable[ThreadReport]) -> SourceLines:
    """The source of every Python frame of the threads; frames whose file cannot be read have none."""
    reader = SourceReader(target)
    wanted = {(frame.file, frame.line) for thread in threads for frame in thread.python_frames if frame.line}
    found = ((place, reader.line(*place)) for place in sorted(wanted))
    return {place: line for place, line in found if line}


class SourceReader:
    """Reads each file once. Never waits: what is not a regular file is left alone."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._files: dict[str, tuple[list[bytes], str]] = {}

    def line(self, file: str, number: int) -> SourceLine | None:
        """The line as the process's own file has it now, None where there is none."""
        if not file.startswith("/"):  # "<string>", or relative to a folder that may have changed since
            return None
        unknown: list[str] = []
        found = self._target.origin.files.fact(f"line {number} of {file}", unknown, lambda: self._line(file, number))
        return SourceLine(found[0], found[1]) if len(found) == 2 else None

    def texts(self, file: str) -> list[str]:
        """All lines of the process's own file without the blanks around them; none where it cannot be read, or not
        beside a process that runs here."""
        if not file.startswith("/") or self._target.origin.is_core or not self._target.origin.files.are_here:
            return []
        lines, _ = self._read(file)
        return [line.decode("utf-8", "replace").strip() for line in lines]

    def _line(self, file: str, number: int) -> list[str]:
        """The text and the doubt about it; [] without a text."""
        if file not in self._files and len(self._files) < MAX_FILES:
            self._files[file] = self._read(file)
        lines, changed = self._files.get(file, ([], ""))
        if not 0 < number <= len(lines):
            return []
        text = lines[number - 1].decode(_encoding(lines), "replace").strip()[:MAX_LINE]
        return [text, changed] if text else []

    def _read(self, file: str) -> tuple[list[bytes], str]:
        try:
            data, modified = self._target.origin.foreign.source(file, MAX_FILE)
        except OSError:
            return [], ""
        return data.split(b"\n"), self._changed(modified)

    def _changed(self, modified: float) -> str:
        known = self._target.origin.files_known_at()
        if known is None or modified <= known + _CLOCK_ERROR:
            return ""
        event = "the core was written" if self._target.origin.is_core else "the process started"
        return f"the file changed after {event}"


def _encoding(lines: list[bytes]) -> str:
    """Python's own rule (PEP 263); UTF-8 where nothing, or nonsense, is declared."""
    for line in lines[:2]:
        found = _CODING.match(line)
        if found:
            name = found.group(1).decode("ascii", "replace")
            try:
                "".encode(name)
            except LookupError:
                return "utf-8"
            return name
    return "utf-8"
