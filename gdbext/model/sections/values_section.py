"""The end of a run of ``dispatch-values``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.ending import Ending
from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class ValuesSection(Section):
    """How many calls were seen, why it ended, and where files went."""

    name: ClassVar[str] = "values"
    mode: str
    count: int
    ending: Ending
    notes: tuple[str, ...] = ()
    folder: str | None = None
    files: int = 0
