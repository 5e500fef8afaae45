"""Process, a running process, a core or a recording, with all that gdbext can report of it; the answers of commands."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.diagnosis.inspect import inspect_threads
from gdbext.diagnosis.report import json_report, render_text
from gdbext.diagnosis.report.finding import Verdict
from gdbext.diagnosis.session import Session
from gdbext.engine.targets.budget import CallLimits
from gdbext.engine.targets.live.proc_checks import check_process
from gdbext.engine.terminal import escape
from gdbext.errors import UsageError
from gdbext.hosts import opening
from gdbext.hosts.library import notebook
from gdbext.hosts.library.threads import Python, Thread, Threads
from gdbext.hosts.library.torch_view import Torch
from gdbext.render.page import text
from gdbext.tools import running

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from gdbext.diagnosis.report import Report, TargetReport
    from gdbext.diagnosis.report.finding import Finding
    from gdbext.engine.targets.base_target import Target
    from gdbext.engine.vocabulary import ErrorReport


class Answer:
    """The answer of a command. ``str()`` of it is the text that scripts/dispatch shows."""

    def __init__(self, report: Report) -> None:
        self.report = report

    @cached_property
    def document(self) -> dict[str, Any]:
        """The JSON document (docs/gdbext-1.schema.json), as scripts/dispatch writes it with --json."""
        return json_report.document(self.report)

    @property
    def target(self) -> TargetReport:
        """The process that the answer is about."""
        assert self.report.target
        return self.report.target

    @property
    def errors(self) -> tuple[ErrorReport, ...]:
        """Everything that could not be read."""
        return self.report.errors

    def __str__(self) -> str:
        return render_text(self.report, color=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.report.command}>"

    def _repr_html_(self) -> str:
        return f"<pre>{'<br>'.join(text(line) for line in str(self).splitlines())}</pre>"


class ShownVerdict(Verdict):
    """A verdict that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return notebook.findings(self)


class Diagnosis(Answer):
    """The answer of dispatch-diagnose: why the process hangs or crashed."""

    def __init__(self, report: Report, session: Session, limits: CallLimits) -> None:
        super().__init__(report)
        self.threads = Threads([Thread.of(session, each, limits) for each in report.threads])

    @cached_property
    def verdict(self) -> ShownVerdict:
        """The strongest finding, with what to try next."""
        assert self.report.verdict
        return ShownVerdict(*self.report.verdict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the strongest first."""
        return self.report.findings

    def __repr__(self) -> str:
        return f"<Diagnosis {self.verdict.kind.value}: {escape(self.verdict.summary)}>"

    def _repr_html_(self) -> str:
        return notebook.findings(self.verdict, self.findings)


class Process:
    """A process, core or recording that was opened. As a context manager, it resumes a held process at the end."""

    def __init__(
        self, target: Target, standstill: opening.Standstill | None = None, limits: CallLimits | None = None
    ) -> None:
        """``standstill``: None for a core or a recording."""
        self.standstill = standstill
        self._limits = limits or CallLimits()
        self._target = target
        self._session = Session(target)
        target.moment.on_change(self._renew)

    @property
    def pid(self) -> int:
        """Id of the process in the kernel."""
        return self._target.pid

    @property
    def kind(self) -> str:
        """The kind of target: "live" or "core"."""
        return self._target.origin.kind

    @property
    def standstill_text(self) -> str:
        """A sentence on whether the process is stopped: "process 4711 is stopped until it is closed"."""
        if not self.standstill:
            return "nothing is running: it is a " + ("recording" if self._target.origin.recorded else "core")
        return f"process {self.pid} {self.standstill.value}"

    @cached_property
    def threads(self) -> Threads:
        """All threads with what each waits for, as all-threads reports them; read once."""
        with self._limits.watch():
            self._session, reports = self._session.read_consistently(inspect_threads)
        return Threads([Thread.of(self._session, each, self._limits) for each in reports.threads])

    def diagnose(self) -> Diagnosis:
        """Find out why it hangs or crashed, as dispatch-diagnose does."""
        report = self.run("dispatch-diagnose").report
        return Diagnosis(report, self._session, self._limits)

    def run(self, command: str, *words: str) -> Answer:
        """Run any command: ``run("dispatch-op", "aten::mm")``. Raises GdbextError, also UsageError."""
        with self._limits.watch():
            return Answer(running.report(command, words, lambda: self._session))

    @property
    def torch(self) -> Torch:
        """Its PyTorch: operators and tensors."""
        return Torch(self._session, self._limits)

    @property
    def python(self) -> Python:
        """Its Python: frames with their variables."""
        return Python(self._session, self._limits)

    def close(self) -> None:
        """Resume the process if it was held; idempotent."""
        self._target.close()

    def _renew(self) -> None:
        """Drop the session, which may be older than the threads: the process was sampled again."""
        self._session = Session(self._target, self._session.layout_if_known, self._session.files)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        recorded = ", recorded" if self._target.origin.recorded else ""
        how = f", {self.standstill.name.lower()}" if self.standstill else ""
        return f"<Process {self.pid} ({self.kind}{recorded}{how})>"

    def _repr_html_(self) -> str:
        return notebook.table(("process", "kind"), [(str(self.pid), self.kind)]) + self.threads._repr_html_()


def open_process(
    pid: int | None, core: str | None, recording: str | None, sysroot: str, stop: bool, hold: bool, limits: CallLimits
) -> Process:
    """Open what gdbext.open was asked for. Raises GdbextError."""
    if sum(source is not None for source in (pid, core, recording)) != 1:
        raise UsageError("specify what to examine", help="gdbext.open(pid=…), open(core=…) or open(recording=…)")
    if (hold or not stop) and pid is None:
        raise UsageError("stop=False and hold=True are for a running process (pid=…)")
    if hold and not stop:
        raise UsageError("hold=True and stop=False contradict each other", help="omit one of them")
    if sysroot and core is None:
        raise UsageError("sysroot is for core dumps: a running process shows its own files")
    with limits.watch():
        if recording is not None:
            return Process(opening.open_recording(recording), limits=limits)
        if core is not None:
            return Process(opening.open_core(core, sysroot), limits=limits)
        check_process(pid or 0)
        standstill = opening.Standstill.HELD if hold else opening.Standstill.BRIEF if stop else opening.Standstill.NONE
        target = opening.open_live(pid or 0, standstill)
        try:
            target.memory.threads()  # now is the moment that all answers are about
        except BaseException:
            target.close()
            raise
        return Process(target, standstill, limits)
