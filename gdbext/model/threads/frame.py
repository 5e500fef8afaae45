"""Frame: one line of a stack for people."""

from __future__ import annotations

from enum import Enum

from gdbext.model.record import Record


class FrameKind(Enum):
    """Whose frame it is."""

    NATIVE = "native"
    PYTHON = "python"


class Frame(Record):
    """One frame of a thread. ``level`` counts native frames from the innermost one, 0; a Python frame has the level
    of the native frame that evaluates it."""

    level: int
    kind: FrameKind
    function: str
    module: str = ""
    file: str = ""
    line: int | None = None
    pc: int | None = None
    role: str = ""

    @property
    def place(self) -> str:
        """``train.py:8 (step)``."""
        return f"{self.file}:{self.line if self.line is not None else '?'} ({self.function})"
