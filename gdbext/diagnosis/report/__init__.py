"""The report of a command: the facts that render/ turns into text, JSON, DOT or a trace."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.terminal import IN_A_DEBUGGER, CommandLine, escape, one_line
from gdbext.engine.vocabulary import Section
from gdbext.render import Style

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import ClassVar, TypeVar

    from gdbext.diagnosis.report.finding import Finding, Verdict
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.threads.source_lines import SourceLines
    from gdbext.engine.targets.base_target import RecordedRun
    from gdbext.engine.vocabulary import ErrorReport, Internal, Sparse
    from gdbext.errors import GdbextError

    View = Callable[["Report", "Style"], Iterator[str]]
    SectionType = TypeVar("SectionType", bound=Section)


class LayoutReport(NamedTuple):
    """Where PyTorch's structures have their fields. ``match`` is "exact", "generated", "probed" or "none"."""

    id: str | None
    match: str


class TorchReport(NamedTuple):
    version: str
    layout: LayoutReport


class PythonReport(NamedTuple):
    version: str


class CutCall(NamedTuple):
    """A system call in which a thread was stopped, and which the stop may have cut short."""

    tid: int
    call: str


class TargetReport(NamedTuple):
    """The process of a report. PyTorch and Python are None if there is none or it is not known."""

    kind: str
    """The kind of target: "live" or "core"."""
    pid: int
    debugger: str
    """The debugger: "gdb", "lldb" or "none"."""
    architecture: str = ""
    """The machine as the kernel names it (uname -m)."""
    torch: TorchReport | None = None
    python: PythonReport | None = None
    paused_ms: float | None = None
    """Milliseconds for which the process was stopped for this report; None if unknown."""
    moved: Sparse[tuple[int, ...]] = ()
    """Ids of threads that ran while memory was read: what is reported of them may mix two moments."""
    stops: Sparse[int | None] = None
    """Number of times that the process was stopped; 0: all of its threads slept; None if unknown."""
    cut_short: Sparse[tuple[CutCall, ...]] = ()
    """The system calls that the stop may have ended early."""
    withheld_sources: Sparse[int] = 0
    """Number of source files that are not shown, because this machine's may differ from the core's."""
    recording: Sparse[RecordedRun | None] = None
    """The recording that was replayed in place of the target."""


class EndingKind(Enum):
    """Why a live command ended. The value is the JSON name."""

    ASKED = "asked"
    """A hook asked for the end."""
    EXITED = "exited"
    KILLED = "killed"
    GONE = "gone"
    """The process ended in an unknown way."""
    INTERRUPTED = "interrupted"
    """The user interrupted the run."""
    SIGNAL = "signal"
    """The process got a signal that stops it."""
    STOPPED = "stopped"
    """A breakpoint or a catchpoint of the user's stopped it, or the debugger did."""
    REPLACED = "replaced"
    """The process replaced itself by another program (exec)."""
    LIMIT = "limit"
    """The number of events that the user wanted was reached."""
    FAILED = "failed"
    """The ending's ``error`` says why."""

    @property
    def leaves_process(self) -> bool:
        """True if the process still exists."""
        return self not in (EndingKind.EXITED, EndingKind.KILLED, EndingKind.GONE)

    @property
    def is_by_command(self) -> bool:
        """True if the command ended by itself, not by an event of the process, which may resume."""
        return self in (EndingKind.LIMIT, EndingKind.FAILED, EndingKind.REPLACED)


class Ending(NamedTuple):
    """The end of a live command; ``text``: in words, ``status``: of a process that exited."""

    kind: EndingKind
    text: str
    status: int | None = None
    error: Internal[GdbextError | None] = None


SCHEMA = "gdbext/1"


class Report(NamedTuple):
    """The answer to one command. ``view`` makes the lines of its text; a report of nothing but an error has none."""

    command: str
    target: TargetReport | None
    view: Internal[View | None] = None
    threads: tuple[ThreadReport, ...] = ()
    verdict: Verdict | None = None
    findings: tuple[Finding, ...] = ()
    errors: tuple[ErrorReport, ...] = ()
    sections: Internal[tuple[Section, ...]] = ()
    """The sections that this command alone reports."""
    why: Internal[bool] = False
    """The user asked for the evidence."""
    sources: Internal[SourceLines] = MappingProxyType({})
    """Source lines of the Python frames, for text; a JSON document names file and line only."""
    called: Internal[CommandLine] = IN_A_DEBUGGER
    """How the command was called, for the commands that its text suggests."""

    def section(self, kind: type[SectionType]) -> SectionType:
        """The section of that type. Raises LookupError if there is none."""
        section = self.find_section(kind)
        if section is None:
            raise LookupError(f"the report of {self.command} has no {kind.name}")
        return section

    @property
    def problem(self) -> str:
        """What could not be read, in one line; "" if nothing is missing."""
        return "; ".join(error.what for error in self.errors)

    def has(self, name: str) -> bool:
        """True if there is a section of that name. Unlike find_section(), this needs no import of its type."""
        return any(section.name == name for section in self.sections)

    def find_section(self, kind: type[SectionType]) -> SectionType | None:
        return next((section for section in self.sections if isinstance(section, kind)), None)


def render_text(report: Report, color: bool = False) -> str:
    """The whole text, ending in a newline. Each item of a view is one line: line breaks in it are escaped."""
    style = Style(color)
    view = report.view(report, style) if report.view else ()
    target = _target_lines(report, report.target) if report.target else ()
    return "".join(f"{one_line(line)}\n" for line in (*view, *target, *_errors(report, style)))


def _target_lines(report: Report, target: TargetReport) -> Iterator[str]:
    """Lines about the reading: threads that ran meanwhile, the stop, cut system calls, withheld source files."""

    def joined(texts: Sequence[object]) -> str:
        return ", ".join(map(str, texts[:8])) + (", …" if len(texts) > 8 else "")

    if target.moved:
        yield ""
        moved = joined(target.moved)
        yield f"These threads ran while they were read, so their state may mix two moments: {moved}"
    if target.stops is not None and report.threads:
        yield ""
        if not target.stops:
            how = "its threads were read while they slept" if target.moved else "all threads were asleep"
            yield f"The process was not stopped: {how}."
        else:
            times = "" if target.stops == 1 else f" ({target.stops} stops)"
            paused = f"{target.paused_ms or 0:.1f} ms{times}"
            yield f"The process was stopped for {paused}: not all threads were asleep long enough."
        if target.stops and target.cut_short:
            calls = joined([f"{cut.call} of {cut.tid}" for cut in target.cut_short])
            yield f"That may have ended system calls early, with a short count or EINTR: {calls}"
    count = target.withheld_sources
    if count:
        files, whose = ("1 file", "file") if count == 1 else (f"{count} files", "files")
        # commands that let the user's debugger use this machine's files for the core
        vouching = {"gdb": "set sysroot /", "lldb": "platform select host --sysroot /"}
        if report.called.source or target.debugger not in vouching:
            command = report.called.with_own_files(report.command)
        else:
            command = f"{vouching[target.debugger]}   and then: {report.command}"
        yield ""
        yield (
            f"Source lines of {files} are not shown. This machine's {whose} may differ from what the program ran; "
            f"if not, see them with: {command}"
        )


def _errors(report: Report, style: Style) -> Iterator[str]:
    """The errors; a reason or next step that several share is printed once."""
    if not report.errors:
        return
    yield ""
    yield style("Could not be read:", "bold")
    shown = set()
    for error in report.errors:
        where = f"{escape(error.where)}: " if error.where else ""
        yield f"  {where}{escape(error.what)}"
        for title, text in (("why", error.why), ("try", error.help)):
            if text and (title, text) not in shown:
                shown.add((title, text))
                yield f"    {title}: {escape(report.called.complete_commands(text) if text == error.help else text)}"


class DotSection(Section):
    """The files with the wait-for graph. (Every view imports this: no dataclass, which takes long to import.)"""

    name: ClassVar[str] = "dot"
    files: tuple[str, ...]
    svg: str | None

    def __init__(self, files: tuple[str, ...], svg: str | None) -> None:
        self.files = files
        self.svg = svg
