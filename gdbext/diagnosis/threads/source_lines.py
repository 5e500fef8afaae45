"""Lines of Python source: read from the files that the process itself sees, if they have not changed since."""

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
    """Why the file may differ from what the process runs ("the file changed after the process started"), or ""."""


SourceLines = Mapping["tuple[str, int]", SourceLine]
"""(file as the code object names it, line number from 1) → the line."""

NO_SOURCES: SourceLines = {}


MAX_FILE = 8 << 20
"""Bytes of the largest file that is read: generated code may be long, source is not."""


def source_lines(target: Target, threads: Iterable[ThreadReport]) -> SourceLines:
    """The source of every Python frame of the threads; frames whose file cannot be read have none."""
    reader = SourceReader(target)
    places = {(frame.file, frame.line) for thread in threads for frame in thread.python_frames if frame.line}
    return {place: line for place in sorted(places) if (line := reader.line(*place))}


class SourceReader:
    """Reads each file once. Never blocks: only regular files are opened."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._files: dict[str, tuple[list[bytes], str]] = {}

    def line(self, file: str, number: int) -> SourceLine | None:
        """Line ``number`` (from 1) of a file of the process as it is now, None if there is none."""
        if not file.startswith("/"):  # "<string>", or relative to a folder that may have changed since
            return None
        nothing: list[str] = []
        parts = self._target.origin.files.fact(f"line {number} of {file}", nothing, lambda: self._line(file, number))
        return SourceLine(parts[0], parts[1]) if len(parts) == 2 else None

    def stripped_lines(self, file: str) -> list[str]:
        """All lines of a file, stripped; [] if it cannot be read, or the process is not on this machine."""
        if not file.startswith("/") or self._target.origin.is_core or not self._target.origin.files.are_here:
            return []
        lines, _ = self._read(file)
        return [line.decode("utf-8", "replace").strip() for line in lines]

    def _line(self, file: str, number: int) -> list[str]:
        """[the text of at most 300 characters, the doubt about it]; [] without a text."""
        if file not in self._files and len(self._files) < 200:
            self._files[file] = self._read(file)
        lines, changed = self._files.get(file, ([], ""))
        if not 0 < number <= len(lines):
            return []
        text = lines[number - 1].decode(_encoding(lines), "replace").strip()[:300]
        return [text, changed] if text else []

    def _read(self, file: str) -> tuple[list[bytes], str]:
        """(the lines, the doubt whether the process runs them or ""); ([], "") if the file cannot be read."""
        try:
            data, modified = self._target.origin.foreign.source(file, MAX_FILE)
        except OSError:
            return [], ""
        lines, known = data.split(b"\n"), self._target.origin.files_known_at()
        # A process's start is known in hundredths of a second, a file's time in ticks of the kernel.
        if known is None or modified <= known + 0.05:
            return lines, ""
        event = "the core was written" if self._target.origin.is_core else "the process started"
        return lines, f"the file changed after {event}"


def _encoding(lines: list[bytes]) -> str:
    """The encoding of a source file (PEP 263), declared in one of the first two lines; UTF-8 by default."""
    for line in lines[:2]:
        declared = re.match(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", line)
        if declared:
            name = declared.group(1).decode("ascii", "replace")
            try:
                "".encode(name)
            except LookupError:
                break
            return name
    return "utf-8"
