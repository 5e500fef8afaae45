"""Saves the evidence of a hang: diagnosis, recording, and on request a core dump, a report on the job, a trace."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cache import find_program
from gdbext.diagnosis.report import json_report
from gdbext.engine.formats import whole_file
from gdbext.engine.formats.workplace import Workplace
from gdbext.engine.targets.live.supervision import check_can_stop
from gdbext.errors import GdbextError, TargetError
from gdbext.tools.family import end_with_parent, run_aside, start_aside

if TYPE_CHECKING:
    from gdbext.tools.program import Dispatch

_TIMEOUT = "120"
"""Seconds for a diagnosis; afterwards the process is resumed."""
ENDINGS = ("txt", "json", "rec", "html")
"""Endings of the files that are always written."""


class Evidence(NamedTuple):
    """The saved evidence of a hang."""

    folder: str
    stem: str
    """The beginning of the names of its files."""
    verdict: dict[str, str]
    """The members "kind" and "summary" of the report's verdict."""
    text: str
    """The diagnosis."""
    waits: frozenset[str] = frozenset()
    """The WaitKinds of the verdict's threads."""

    @property
    def start(self) -> str:
        """The beginning of the paths of all its files."""
        return f"{self.folder}/{self.stem}"

    def remove(self) -> None:
        """Delete the files, because the process does not hang."""
        with contextlib.suppress(OSError):
            folder = whole_file.open_folder(self.folder)
            for ending in ENDINGS:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.stem}.{ending}", dir_fd=folder)
            os.close(folder)


class EvidenceFolder:
    """The folder of the evidence. It may belong to another user, who runs the process, so files are made in a private
    folder inside, and moved."""

    def __init__(self, folder: str | None, dispatch: Dispatch) -> None:
        """``folder``: None for a new temporary one, made when it is needed; ``dispatch`` runs scripts/dispatch. Raises
        TargetError if the folder is not writable."""
        self._folder = folder
        self.dispatch = dispatch
        self.is_new = False
        if folder is not None:
            try:
                os.close(whole_file.open_folder(folder))
            except OSError:
                self.is_new = True
            Workplace(folder).close()

    def take(self, pid: int) -> Evidence:
        """Diagnose the process, which stops it for some milliseconds, and save the result. Raises TargetError."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="gdbext-watch-")
        stem = f"hang-{pid}-{time.strftime('%Y%m%d-%H%M%S')}"
        with Workplace(self._folder) as place:
            options = ["-p", str(pid), "--debugger", "none", "--timeout", _TIMEOUT, "--record", f"{stem}.rec"]
            status = run_aside(self.dispatch, [*options, "--json", "dispatch-diagnose"], place, f"{stem}.json")
            verdict, waits, problem = _verdict(place, f"{stem}.json")
            if status != 0:
                raise TargetError(f"no diagnosis was made: {problem or 'it failed'}")
            path = f"{os.path.abspath(self._folder)}/{stem}"  # noqa: PTH100 - a text for people
            replay = ["-r", f"{stem}.rec", "--named", f"{path}.rec", "dispatch-diagnose", "--html", f"{stem}.html"]
            run_aside(self.dispatch, replay, place, f"{stem}.txt")
            return Evidence(self._folder, stem, verdict, _publish(place, stem, ENDINGS), waits)

    def take_job(self, evidence: Evidence, pid: int) -> tuple[str, ...]:
        """Examine all ranks of the process's job on this machine; the endings of the files. Raises TargetError."""
        stem, endings = f"{evidence.stem}.job", ("txt", "json", "html")
        words = ["ranks", "-p", str(pid), "--timeout", _TIMEOUT, "--json", "--html", f"{stem}.html"]
        with Workplace(evidence.folder) as place:
            if run_aside(self.dispatch, words, place, f"{stem}.json") != 0:
                raise TargetError("there is no report on the job: dispatch ranks failed")
            run_aside(self.dispatch, ["ranks", "--reports", f"{stem}.json"], place, f"{stem}.txt")
            _publish(place, stem, endings)
        return tuple(f"job.{ending}" for ending in endings)


def _publish(place: Workplace, stem: str, endings: Sequence[str]) -> str:
    """Move the files STEM.ENDING to the evidence folder, and return the text of the first. Raises TargetError."""
    try:
        text = place.read(f"{stem}.{endings[0]}")
        for ending in endings:
            place.publish(f"{stem}.{ending}")
    except OSError as error:
        raise TargetError(f"the diagnosis cannot be saved: {error.strerror}", help="choose another --save") from error
    return text


def take_core(evidence: Evidence, pid: int) -> str:
    """Write a core of the process by gdb's gcore, which stops the process meanwhile; the ending of the core's name.
    Raises TargetError."""
    program = find_program("gcore")
    if not program:
        raise TargetError("no core was written: gcore is not installed", help="install gdb, which has it")
    check_can_stop(pid)
    words = [program, "-o", "core", str(pid)]
    try:
        with Workplace(evidence.folder) as place:
            done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=place.path)
            if done.returncode != 0:
                raise TargetError(f"no core was written: {(done.stderr.strip().splitlines() or ['gcore failed'])[-1]}")
            place.publish(f"core.{pid}", f"{evidence.stem}.core")
    except OSError as error:
        raise TargetError(f"no core was written: {error}") from error
    return "core"


def _verdict(place: Workplace, name: str) -> tuple[dict[str, str], frozenset[str], str]:
    """(verdict, waits, problem) of the JSON report in the file ``name``: the first two as in Evidence, then what went
    wrong, or ""."""
    unknown = {"kind": "", "summary": ""}
    try:
        report = json_report.parse(place.data(name), name)
    except (OSError, GdbextError):
        return unknown, frozenset(), "it wrote no report"
    verdict = report.verdict
    if not verdict:
        return unknown, frozenset(), report.problem
    about = [thread.wait for thread in report.threads if thread.tid in verdict.threads]
    waits = frozenset(wait.kind.value if wait else "" for wait in about)
    return {"kind": verdict.kind.value, "summary": verdict.summary}, waits, report.problem


_ATTEMPTS = 3
"""Most starts of a trace. A start may fail because torch is not loaded yet, or the program replaces itself (execve)."""


class TraceBuffer:
    """A trace by a child process (``dispatch-trace --last``), which the first keep() starts."""

    def __init__(self, pid: int, seconds: float, folder: str, dispatch: Dispatch) -> None:
        """``pid``: the traced process; ``seconds``: how much of the trace is kept; ``dispatch`` runs scripts/dispatch.
        Raises TargetError if ``folder`` is not writable."""
        self._place = Workplace(folder)
        self._page = f"trace-{pid}.html"
        self._report = f"trace-{pid}.json"
        self._words = ["-p", str(pid), "dispatch-trace", "--all", "--engine", "probes", "--last", f"{seconds:g}"]
        self._words += ["--output", self._page, "--json"]
        self._dispatch = dispatch
        self._child = 0  # the process id of the trace; 0 while it does not run
        self._attempts_left = _ATTEMPTS

    def keep(self) -> None:
        """Start the trace if it does not run. Raises TargetError if it cannot run."""

        def prepare() -> None:
            """Make the child exit when we do, and obey SIGINT."""
            end_with_parent(signal.SIGTERM)
            signal.signal(signal.SIGINT, signal.default_int_handler)

        if self._child and os.waitpid(self._child, os.WNOHANG)[0]:
            self._child = 0
            if not self._attempts_left:
                raise TargetError(f"no trace is recorded: {self._problem()}")
        if not self._child and self._attempts_left:
            self._attempts_left -= 1
            self._child = start_aside(self._dispatch, self._words, self._place, self._report, prepare)

    def _problem(self) -> str:
        """The error in the trace's own report."""
        try:
            return json_report.parse(self._place.data(self._report), self._report).problem or "it ended"
        except (OSError, GdbextError):
            return "it had not started"

    def take(self, stem: str) -> str:
        """End the trace, and save it as STEM.trace.html; the ending of the name. Raises TargetError."""
        status = self._end()
        self._attempts_left = _ATTEMPTS
        try:
            if status:
                raise TargetError(f"no trace was saved: {self._problem()}")
            self._place.publish(self._page, f"{stem}.trace.html")
        except OSError as error:
            raise TargetError(f"no trace was saved: {error.strerror}") from error
        return "trace.html"

    def end(self) -> None:
        """End the trace, and delete the temporary files."""
        self._end()
        self._place.close()

    def _end(self) -> int:
        """Make the trace's process exit; its exit status, 1 if it did not run."""
        if not self._child:
            return 1
        child, self._child = self._child, 0
        # Signals, and seconds to wait after each: SIGINT has the trace write its page, which must not take forever.
        for number, seconds in ((signal.SIGINT, 20.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    return os.waitstatus_to_exitcode(status)
                time.sleep(0.005)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
