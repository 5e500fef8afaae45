"""The files that ``all-threads --dot`` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class DotSection(Section):
    """The wait-for graph in graphviz' language, and its picture where graphviz is installed."""

    name: ClassVar[str] = "dot"
    files: tuple[str, ...]
    svg: str | None
