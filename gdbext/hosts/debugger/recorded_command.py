"""Runs a command on a target and records everything that is read of it (``--record FILE``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter

from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool import ToolHost
from gdbext.engine.formats.whole_file import PRIVATE, WholeFile
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.recording import recorder
from gdbext.engine.targets.recording.recorder import MAX_MEMORY, RecordingTarget
from gdbext.engine.targets.recording.recording import Recording
from gdbext.engine.vocabulary import byte_size, counted
from gdbext.errors import GdbextError, UsageError
from gdbext.tools import running, table
from gdbext.tools.outcome import Outcome

_INCOMPLETE = (
    f"\n  It is incomplete: more than {MAX_MEMORY >> 20} MB of memory was read, the most that it keeps. A replay "
    "reports the rest as errors.\n  Record a command that reads less: dispatch-bt --thread TID"
)


class RecordedCommand:
    """One command and its recording: ``run`` while the target is stopped, ``save`` when it runs again."""

    def __init__(self, name: str, argv: Sequence[str], path: str) -> None:
        """Raises UsageError if the file ``path`` cannot be written, or the command lets the process run."""
        self._name = name
        self._argv = argv
        self._path = path
        self._recording: Recording | GdbextError | None = None
        self._is_complete = True
        self._seconds = 0.0
        if table.find(name).runs_on(argv):
            raise UsageError(f"--record captures one moment, but {name} lets the process run")
        # a path like /proc/self/fd/N is a file descriptor that another program has opened for us
        if not path.startswith("/proc/self/fd/"):
            folder = os.path.dirname(path) or "."  # noqa: PTH120 - pathlib takes 10 ms to import
            if not os.access(folder, os.W_OK | os.X_OK):
                raise UsageError(f"--record: {folder} is not a writable folder")
            if os.path.lexists(path) and not os.path.isfile(path):  # noqa: PTH113
                raise UsageError(f"--record: {path} exists and is not a regular file")

    def run(self, open_target: Callable[[], Target], color: bool, host: ToolHost | None = None) -> Outcome:
        """Run the command, then, for the recording, everything else that a bug report needs."""
        sessions: list[Session] = []
        targets: list[RecordingTarget] = []

        def open_session() -> Session:
            """A session of a target that records all reads."""
            targets.append(RecordingTarget(open_target()))
            sessions.append(Session(targets[0]))
            return sessions[0]

        outcome = running.execute(self._name, self._argv, open_session, color, host)
        if sessions:
            started = perf_counter()
            for row in table.commands():
                for options in row.recorded:
                    running.execute(row.name, options, lambda: sessions[0])  # as text: only that shows lines of source
            self._is_complete = targets[0].is_complete
            try:
                self._recording = targets[0].recording(" ".join((self._name, *self._argv)))
            except GdbextError as error:
                self._recording = error
            self._seconds = perf_counter() - started
        return outcome

    def save(self, outcome: Outcome) -> None:
        """Write the file, and add to the outcome's standard error what is in it, or why there is none."""
        if not self._recording:
            return
        try:
            if isinstance(self._recording, GdbextError):
                raise self._recording
            data = recorder.encode(self._recording)
            with WholeFile(self._path, PRIVATE) as file:
                file.write(data)
            note = _summary(self._recording, self._path, len(data), self._seconds)
            note += "" if self._is_complete else _INCOMPLETE
        except (GdbextError, OSError) as error:
            outcome.status = outcome.status or 1
            reason = error.strerror if isinstance(error, OSError) else None
            note = f"no recording was made: {reason or error}"
        outcome.error = f"{outcome.error}\n{note}".lstrip()


def _summary(recording: Recording, path: str, size: int, seconds: float) -> str:
    """The file's contents, ``size`` in bytes, and the ``seconds`` that the process was stopped for them."""
    longer = "" if recording.kind == "core" else f"; the process was stopped {seconds:.2f} s longer for it"
    files, answers = counted(len(recording.files), "library"), counted(len(recording.facts), "answer")
    parts = f"{byte_size(len(recording.memory))} of memory, parts of {files} and programs"
    return (
        f"recorded in {path} ({byte_size(size)}{longer}):\n"
        f"  registers, the memory map, {parts}, {answers} of /proc and the file system,\n"
        f"  {counted(len(recording.environ), 'environment variable')}. The memory may contain paths, code, strings, "
        "tensor values, passwords and keys.\n"
        f"  Replay it anywhere with: scripts/dispatch -r {path}"
    )
