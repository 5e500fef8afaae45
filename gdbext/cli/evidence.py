"""What is kept of a hang: the diagnosis as text and as JSON, the recording that it was made from; on request a core
dump, and the report on the whole job."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence

from gdbext.errors import TargetError
from gdbext.model.record import Record

Dispatch = Callable[[Sequence[str]], int]
"""``scripts/dispatch``: its words to its exit status."""
_TIMEOUT = "120"
"""Seconds for a diagnosis; the process goes on when they are over."""
ENDINGS = ("txt", "json", "rec")
"""Of the files that are always there."""


class Evidence(Record):
    """``verdict``: "kind" and "summary" of the JSON report; ``folder`` has files whose names begin with ``stem``;
    ``waits``: what the threads wait for that the verdict is about, by WaitKind's words."""

    folder: str
    stem: str
    verdict: dict[str, str]
    text: str
    waits: frozenset[str] = frozenset()

    @property
    def start(self) -> str:
        """What the paths of all its files begin with."""
        return f"{self.folder}/{self.stem}"

    def remove(self) -> None:
        """Take it away again: it was no hang."""
        for ending in ENDINGS:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.start}.{ending}")  # noqa: PTH108


class EvidenceFolder:
    """Where evidence goes: the user's folder, else one in the folder for temporary files, made when it is needed."""

    def __init__(self, folder: str | None, dispatch: Dispatch) -> None:
        """``dispatch`` is scripts/dispatch. Raises TargetError where nothing can be written there."""
        self._folder = folder
        self._dispatch = dispatch
        if folder is not None:
            try:
                os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            except OSError as error:
                raise TargetError(f"cannot write to {folder}: {error.strerror}", help="name another --save") from error

    def take(self, pid: int) -> Evidence:
        """Look at the process once, which stands still meanwhile, and keep what was seen. Raises TargetError."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="gdbext-watch-")
        stem = f"hang-{pid}-{time.strftime('%Y%m%d-%H%M%S')}"
        start = f"{self._folder}/{stem}"
        looked = ["-p", str(pid), "--debugger", "none", "--timeout", _TIMEOUT, "--record", f"{start}.rec"]
        status = run_aside(self._dispatch, [*looked, "--json", "dispatch-diagnose"], f"{start}.json")
        verdict, waits, wrong = _verdict(f"{start}.json")
        if status != 0:
            raise TargetError(f"no diagnosis was made: {wrong or 'it failed'}")
        run_aside(self._dispatch, ["-r", f"{start}.rec", "dispatch-diagnose"], f"{start}.txt")
        with open(f"{start}.txt", errors="replace") as file:
            return Evidence(self._folder, stem, verdict, file.read(), waits)


    def take_job(self, evidence: Evidence, pid: int) -> tuple[str, ...]:
        """Look at all ranks of the process's job on this machine; the endings of the files. Raises TargetError."""
        start = f"{evidence.start}.job"
        words = ["ranks", "-p", str(pid), "--timeout", _TIMEOUT, "--json", "--html", f"{start}.html"]
        if run_aside(self._dispatch, words, f"{start}.json") != 0:
            raise TargetError("there is no report on the job: dispatch ranks failed")
        run_aside(self._dispatch, ["ranks", "--reports", f"{start}.json"], f"{start}.txt")
        return "job.txt", "job.json", "job.html"


def take_core(evidence: Evidence, pid: int) -> str:
    """Have gdb's gcore write a core of the process, which stands still meanwhile; its ending. Raises TargetError."""
    program = shutil.which("gcore")
    if program is None:
        raise TargetError("no core was written: gcore is not installed", help="install gdb, which has it")
    try:
        words = [program, "-o", evidence.start, str(pid)]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise TargetError(f"no core was written: {(done.stderr.strip().splitlines() or ['gcore failed'])[-1]}")
        os.replace(f"{evidence.start}.{pid}", f"{evidence.start}.core")  # noqa: PTH105
    except OSError as error:
        raise TargetError(f"no core was written: {error}") from error
    return "core"


def run_aside(dispatch: Dispatch, words: list[str], output: str) -> int:
    """``dispatch`` with these words in a process of its own, what it prints in a file; the exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(start_aside(dispatch, words, output), 0)[1])


def start_aside(dispatch: Dispatch, words: list[str], output: str, prepare: Callable[[], None] = lambda: None) -> int:
    """As ``run_aside``, but not waited for: the process id. ``prepare`` is called in the child first."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        prepare()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        status = dispatch(words)
    finally:
        os._exit(status)


def errors_in(errors: list[dict[str, str]]) -> str:
    """What a report's field "errors" says, "" if it is empty. Raises LookupError, TypeError for what is no report."""
    return "; ".join(str(error["what"]) for error in errors)


def _verdict(path: str) -> tuple[dict[str, str], frozenset[str], str]:
    """Kind and summary of a report's verdict, what its threads wait for, and what went wrong, "" if nothing did."""
    try:
        with open(path) as file:
            document = json.load(file)
        verdict, wrong = document["verdict"] or {}, errors_in(document["errors"])
        about = [thread for thread in document["threads"] if thread["tid"] in verdict.get("threads", ())]
        waits = frozenset(str((thread["wait"] or {}).get("kind", "")) for thread in about)
    except (OSError, ValueError, LookupError, TypeError):
        return {"kind": "", "summary": ""}, frozenset(), "it left no report"
    return {name: str(verdict.get(name, "")) for name in ("kind", "summary")}, waits, wrong
