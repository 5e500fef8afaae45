"""The child processes of the examined one, as ``dispatch-diagnose`` lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class ChildReport:
    """One child process."""

    pid: int
    command: str
    doing: str
    """What the system says that it does, in a few words."""
    verdict: str = ""
    """The kind of its verdict; "" where it was not looked at."""
    summary: str = ""
    """The sentence of its verdict, or why it could not be looked at."""
    line: str = ""
    """The Python line that its main thread is at."""
    parent: int | None = None
    """The child whose child it is; None for a child of the examined process itself."""


@dataclass(frozen=True)
class ChildrenSection(Section):
    """The children in the order of their pids, each followed by its own; those of them that could be looked at."""

    name: ClassVar[str] = "children"
    children: tuple[ChildReport, ...]
