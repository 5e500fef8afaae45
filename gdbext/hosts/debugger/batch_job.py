"""One command in a debugger of our own, started by cli/: attach or load, run, hand the result over, let go.

The result travels through a file descriptor of its own: nothing that the debugger or the program prints can get into
it.

Runs a command on a target while everything that is read of it is written down (``--record FILE``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter

from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool import ToolHost
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.budget import BudgetWatch, MemoryIsUp, memory_error, raise_gc_threshold
from gdbext.engine.targets.recording import container, recorder
from gdbext.engine.targets.recording.recorder import MAX_MEMORY, RecordingTarget
from gdbext.engine.targets.recording.recording import Recording
from gdbext.engine.terminal import CommandLine
from gdbext.engine.vocabulary import byte_size, counted
from gdbext.errors import GdbextError, UsageError
from gdbext.hosts.debugger import base_debugger
from gdbext.hosts.debugger.base_debugger import Job
from gdbext.hosts.debugger.command_shell import DebuggerHost
from gdbext.tools import table

_INCOMPLETE = (
    f"\n  It is not complete: it keeps {MAX_MEMORY >> 20} MB of memory, and more was read. What is missing is among "
    "the errors of a replay.\n  Record a command that reads less: dispatch-bt --thread TID"
)


class RecordedCommand:
    """One command and its recording: ``run`` while the target is stopped, ``save`` when it goes on again."""

    def __init__(self, name: str, argv: Sequence[str], path: str) -> None:
        """Raises UsageError where nothing can be written to ``path``, or the command lets the process run."""
        self._name = name
        self._argv = argv
        self._path = path
        self._recording: Recording | GdbextError | None = None
        self._is_complete = True
        self._seconds = 0.0
        if table.find(name).runs_on(argv):
            raise UsageError(f"--record keeps one moment, and {name} lets the process run")
        check_place(path)

    def run(self, open_target: Callable[[], Target], color: bool, host: ToolHost | None = None) -> table.Outcome:
        """Run the command and give its outcome."""
        opened: list[Session] = []

        def open_session() -> Session:
            opened.append(Session(RecordingTarget(open_target())))
            return opened[0]

        outcome = table.execute(self._name, self._argv, open_session, color, host)
        if opened:
            started = perf_counter()
            self._recording = self._complete(opened[0])
            self._seconds = perf_counter() - started
        return outcome

    def _complete(self, session: Session) -> Recording | GdbextError:
        """The recording, after everything was read that a bug report needs."""
        for row in table.commands():
            for options in row.recorded:
                table.execute(row.name, options, lambda: session)  # as text: only that shows lines of source
        assert isinstance(session.target, RecordingTarget)
        self._is_complete = session.target.is_complete
        try:
            return session.target.recording(" ".join((self._name, *self._argv)))
        except GdbextError as error:
            return error

    def save(self, outcome: table.Outcome) -> None:
        """Write the file, and say on the outcome's standard error what is in it, or why there is none."""
        if self._recording is None:
            return
        try:
            if isinstance(self._recording, GdbextError):
                raise self._recording
            data = recorder.encode(self._recording)
            container.write(self._path, data)
            note = summary(self._recording, self._path, len(data), self._seconds)
            note += "" if self._is_complete else _INCOMPLETE
        except (GdbextError, OSError) as error:
            outcome.status = outcome.status or 1
            reason = error.strerror if isinstance(error, OSError) else None
            note = f"no recording was made: {reason or error}"
        outcome.error = f"{outcome.error}\n{note}".lstrip()


def check_place(path: str) -> None:
    """Raises UsageError where ``path`` cannot become a file of ours."""
    if path.startswith("/proc/self/fd/"):
        return  # a descriptor that somebody has opened for us
    folder = os.path.dirname(path) or "."  # noqa: PTH120 - pathlib takes 10 ms to import
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--record: {folder} is not a folder that can be written to")
    if os.path.lexists(path) and not os.path.isfile(path):  # noqa: PTH113
        raise UsageError(f"--record: {path} is there already, and is not a file")


def summary(recording: Recording, path: str, size: int, seconds: float) -> str:
    """A summary for people: the file's contents, and what they took."""
    longer = "" if recording.kind == "core" else f"; the process stood still {seconds:.2f} s longer for it"
    files, answers = counted(len(recording.files), "library"), counted(len(recording.facts), "answer")
    parts = f"{byte_size(len(recording.memory))} of memory, parts of {files} and programs"
    return (
        f"recorded in {path} ({byte_size(size)}{longer}):\n"
        f"  registers, the memory map, {parts}, {answers} of /proc and the file system,\n"
        f"  {counted(len(recording.environ), 'environment variable')}. The memory holds what the process "
        "had there: paths, "
        "code, strings, numbers of tensors, perhaps passwords and keys.\n"
        f"  Replay it anywhere with: scripts/dispatch -r {path}"
    )


__all__ = ["Job", "code", "run"]


def code(debugger: str, job: Job, root: str) -> str:
    """The line of Python that does the job inside that debugger; ``root`` is the folder that the package is in.

    Nothing is imported from the folder that we happen to be in, which LLDB would look in.

    Where this package is compiled for the debugger's Python already, that is used, and not compiled into our cache.
    """
    compiled = f"{root!a} + '/gdbext/hosts/debugger/__pycache__/batch_job.' + sys.implementation.cache_tag + '.pyc'"
    cached = f"import os, sys; sys.pycache_prefix = None if os.path.exists({compiled}) else sys.pycache_prefix"
    isolated = "sys.path[:] = [each for each in sys.path if each.startswith('/')]"
    imports = f"{isolated}; sys.path.append({root!a}); from gdbext.hosts.debugger.batch_job import Job, run"
    return f"{cached}; {imports}; run({debugger!a}, {job.expression()})"


def run(name: str, job: Job) -> None:
    """Do the job in the debugger of that name, inside which this runs, and write its outcome to ``job.result``."""
    raise_gc_threshold()
    _keep_descriptors(job)
    debugger = base_debugger.debugger(name)
    called = CommandLine(job.program, job.source) if job.program else None
    host = DebuggerHost(debugger, output=job.output, called=called)
    live = table.find(job.command).resumes and job.core is None
    recorded = _recorded(job)
    memory = 0 if table.find(job.command).runs_on(job.argv) else job.memory
    watched = BudgetWatch(0, memory)  # the launcher counts the seconds

    def open_target() -> Target:
        if job.pid is not None:
            from gdbext.torch.measure import measure_for_process

            measure_for_process(job.pid, job.terminal)
        target = debugger.open(job, live)
        watched.begin()
        return target

    def open_session() -> Session:
        from gdbext.diagnosis.session import Session

        return Session(open_target())

    try:
        if recorded is not None:
            outcome = recorded.run(open_target, job.color, host)
        else:
            outcome = table.execute(job.command, job.argv, open_session, job.color, host)
        watched.end()
    except MemoryIsUp:
        outcome = table.failure(job.command, job.argv, memory_error())
        recorded = None
    finally:
        debugger.let_go(job, host.lets_finish)
    if recorded is not None:
        recorded.save(outcome)
    _write(outcome, job.result)


def _write(outcome: table.Outcome, descriptor: int) -> None:
    with open(descriptor, "wb") as file:
        file.write(outcome.encode())


def _keep_descriptors(job: Job) -> None:
    """A program that the debugger starts must not get the pipe that its own report goes through."""
    for descriptor in (job.result, job.output, job.terminal):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)


def _recorded(job: Job) -> RecordedCommand | None:
    if job.record is None:
        return None

    return RecordedCommand(job.command, job.argv, job.record)
