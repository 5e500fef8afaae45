"""Whether the debugger's own stacks show more than native frames, as dispatch-frames reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class FramesSection(Section):
    """``shown``: from now on ``bt`` has Python functions and passes through the dispatcher in it."""

    name: ClassVar[str] = "debugger_frames"
    shown: bool
