"""Report: what a command returns. It carries facts; render/ turns them into text, JSON, DOT or a trace."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from gdbext.model.record import Record
from gdbext.model.sections.section import Section

if TYPE_CHECKING:
    from gdbext.model.error_report import ErrorReport
    from gdbext.model.judgement.finding import Finding
    from gdbext.model.judgement.verdict import Verdict
    from gdbext.model.target_report import TargetReport
    from gdbext.model.threads.source_line import SourceLines
    from gdbext.model.threads.thread_report import ThreadReport

SCHEMA = "gdbext/1"
SectionType = TypeVar("SectionType", bound=Section)


class Report(Record):
    """The answer to one command.

    ``view`` names the text view (a module of gdbext.render.text.views); "" for a report of nothing but an error.
    """

    command: str
    target: TargetReport | None
    view: str = ""
    threads: tuple[ThreadReport, ...] = ()
    verdict: Verdict | None = None
    findings: tuple[Finding, ...] = ()
    errors: tuple[ErrorReport, ...] = ()
    sections: tuple[Section, ...] = ()
    """What this command alone reports."""
    why: bool = False
    """The user asked for the evidence."""
    sources: SourceLines = MappingProxyType({})
    """Source lines of the Python frames, for text; a JSON document names file and line only."""

    def section(self, kind: type[SectionType]) -> SectionType:
        """The section of that type. Raises LookupError where there is none."""
        found = self.find_section(kind)
        if found is None:
            raise LookupError(f"the report of {self.command} has no {kind.name}")
        return found

    def find_section(self, kind: type[SectionType]) -> SectionType | None:
        """The section of that type, None where there is none."""
        return next((section for section in self.sections if isinstance(section, kind)), None)
