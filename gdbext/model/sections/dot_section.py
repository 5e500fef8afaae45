"""The files that ``all-threads --dot`` wrote."""

from __future__ import annotations

from typing import ClassVar

from gdbext.model.sections.section import Section


class DotSection(Section):
    """The wait-for graph in graphviz' language, and its picture where graphviz is installed.

    No dataclass: every view of threads imports this, and dataclasses take a tenth of a look to import.
    """

    name: ClassVar[str] = "dot"

    def __init__(self, files: tuple[str, ...], svg: str | None) -> None:
        self.files = files
        self.svg = svg
