"""Runs a command on a target while everything that is read of it is written down (``--record FILE``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter

from gdbext.commands import registry
from gdbext.errors import GdbextError, UsageError
from gdbext.inspection.session import Session
from gdbext.targets.base import Target
from gdbext.targets.recording import container, writer
from gdbext.targets.recording.recorder import MAX_MEMORY, RecordingTarget
from gdbext.targets.recording.recording import Recording
from gdbext.targets.system.linux import PAGE_SIZE

READERS = (
    ("dispatch-diagnose", "--why"),
    ("dispatch-bt", "--all", "--why"),
    ("all-threads", "--stacks"),
    ("dispatch-tls",),
    ("dispatch-info",),
    ("dispatch-info", "--settings"),
)
"""What is read besides what the command itself reads, so that a bug report can be looked into."""

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
        entry = registry.find(name)
        if entry.live or entry.running or any(word.startswith("--samples") for word in argv):
            raise UsageError(f"--record keeps one moment, and {name} lets the process run")
        check_place(path)

    def run(self, open_target: Callable[[], Target], color: bool) -> registry.Outcome:
        """The command's outcome."""
        opened: list[Session] = []

        def open_session() -> Session:
            opened.append(Session(RecordingTarget(open_target())))
            return opened[0]

        outcome = registry.execute(self._name, self._argv, open_session, color)
        if opened:
            started = perf_counter()
            self._recording = self._complete(opened[0])
            self._seconds = perf_counter() - started
        return outcome

    def _complete(self, session: Session) -> Recording | GdbextError:
        """The recording, after everything was read that a bug report needs."""
        for reader, *options in READERS:
            registry.execute(reader, options, lambda: session)  # as text: only that shows lines of source
        assert isinstance(session.target, RecordingTarget)
        self._is_complete = session.target.is_complete
        try:
            return session.target.recording(" ".join((self._name, *self._argv)))
        except GdbextError as error:
            return error

    def save(self, outcome: registry.Outcome) -> None:
        """Write the file, and say on the outcome's standard error what is in it, or why there is none."""
        if self._recording is None:
            return
        try:
            if isinstance(self._recording, GdbextError):
                raise self._recording
            data = writer.encode(self._recording)
            container.write(self._path, data)
            note = summary(self._recording, self._path, len(data), self._seconds)
            note += "" if self._is_complete else _INCOMPLETE
        except (GdbextError, OSError) as error:
            outcome.status = outcome.status or 1
            note = f"no recording was made: {error}"
        outcome.error = f"{outcome.error}\n{note}".lstrip()


def check_place(path: str) -> None:
    """Raises UsageError where ``path`` cannot become a file of ours."""
    folder = os.path.dirname(path) or "."  # noqa: PTH120 - pathlib takes 10 ms to import
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--record: {folder} is not a folder that can be written to")
    if os.path.lexists(path) and not os.path.isfile(path):  # noqa: PTH113
        raise UsageError(f"--record: {path} is there already, and is not a file")


def summary(recording: Recording, path: str, size: int, seconds: float) -> str:
    """What is in the file and what it took, for people."""
    pages = -(-len(recording.memory) // PAGE_SIZE)
    longer = "" if recording.kind == "core" else f"; the process stood still {seconds:.2f} s longer for it"
    parts = f"{pages} pages of memory, parts of {len(recording.files)} libraries and programs"
    return (
        f"recorded in {path} ({size / 1e3:.0f} kB{longer}):\n"
        f"  registers, the memory map, {parts}, {len(recording.facts)} answers of /proc and the file system,\n"
        f"  {len(recording.environ)} environment variables. The pages hold what the process had there: paths, code, "
        "strings, numbers of tensors, perhaps passwords and keys.\n"
        f"  Replay it anywhere with: scripts/dispatch -r {path}"
    )
