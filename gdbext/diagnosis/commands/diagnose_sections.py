"""The sections that dispatch-diagnose adds to the report: child processes, known bugs, the page that it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gdbext.diagnosis.kinds import kind_of, rank_of
from gdbext.diagnosis.report.thread_report import is_users_file
from gdbext.engine.vocabulary import Section

if TYPE_CHECKING:
    from gdbext.diagnosis.report.finding import FindingKind
    from gdbext.known.signatures import KnownBugReport


class ChildReport(NamedTuple):
    """Report on one child process."""

    pid: int
    command: str
    doing: str
    """The state of the process in a few words, as the system reports it."""
    verdict: str = ""
    """The JSON word of its verdict's kind; "" if it was not examined."""
    summary: str = ""
    """The sentence of its verdict, or why it could not be examined."""
    line: str = ""
    """The Python line that its main thread is at."""
    parent: int | None = None
    """The child whose child it is; None for a child of the examined process itself."""
    stands: bool = False
    """Its main thread waits at a line of the program's own files, and not for a time."""
    is_rank: bool = False
    """Process groups were found in it: it is a rank of a job."""

    @property
    def kind(self) -> FindingKind:
        return kind_of(self.verdict)

    @property
    def heading(self) -> str:
        """The verdict's kind in plain words; "" if it was not examined."""
        return self.kind.words

    @property
    def is_stuck(self) -> bool:
        """It was examined and is hung, or its main thread waits in the program's own files."""
        return self.kind.is_hang or self.stands

    @property
    def sentence(self) -> str:
        """The program's line that its main thread is at; its verdict if that line is a library's."""
        if self.summary and not is_users_file(self.line.rpartition(":")[0]):
            return f"In process {self.pid}: {self.summary}"
        return f"Process {self.pid} is at {self.line}."

    @property
    def rank(self) -> int:
        """Strength of its verdict: 0 is the strongest."""
        return rank_of(self.verdict)


class ChildrenSection(Section):
    """The children in the order of their pids, each followed by its own; those of them that could be examined."""

    name: ClassVar[str] = "children"
    _fields: ClassVar[tuple[str, ...]] = ("children",)
    children: tuple[ChildReport, ...]

    def __init__(self, children: tuple[ChildReport, ...]) -> None:
        self.children = children


class KnownBugsSection(Section):
    """The known bugs that fit the process."""

    name: ClassVar[str] = "known"
    only_member: ClassVar[str] = "reports"
    reports: tuple[KnownBugReport, ...]

    def __init__(self, reports: tuple[KnownBugReport, ...]) -> None:
        self.reports = reports


class PageSection(Section):
    """The page that --html wrote."""

    name: ClassVar[str] = "page"
    _fields: ClassVar[tuple[str, ...]] = ("file",)
    file: str

    def __init__(self, file: str) -> None:
        self.file = file
