"""Opens a process, a core or a recording without a debugger, for scripts/dispatch and the library.

A look that the kernel may never answer is supervised (engine/targets/live/supervision.py).
"""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING

from gdbext.engine.glibc.pthread import asleep, brief_look, unstopped
from gdbext.engine.targets import budget
from gdbext.engine.targets.live import proc_checks, supervision
from gdbext.engine.targets.live.proc_checks import foreign_tracer
from gdbext.engine.targets.live.proc_target import ProcTarget
from gdbext.engine.targets.live.unstopped import RunningProcess
from gdbext.errors import TargetError, as_root
from gdbext.tools.outcome import Outcome
from gdbext.torch.measure import measure_for_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from gdbext.engine.targets.base_target import Readings, Target


class Standstill(Enum):
    """The choice whether a live process stands still while it is looked at."""

    BRIEF = "is not stopped where all of its threads sleep, else for some milliseconds"
    ASLEEP = "is not stopped where all of its threads sleep, else stands still until it is closed"
    HELD = "stands still until it is closed"
    NONE = "is not stopped: what its running threads do is unknown"


def open_recording(path: str) -> Target:
    """Open a recording. Raises BadRecording."""
    from gdbext.engine.targets.recording.replay_target import ReplayTarget  # 4 ms, for recordings

    return ReplayTarget.load(path)


def open_core(path: str, sysroot: str = "") -> Target:
    """A core dump, by its name, compressed or not, or of systemd's store; or a process while the kernel dumps it.
    ``sysroot`` is where the files of its machine are. Raises BadCore."""
    from gdbext.engine.targets import core_sources  # 8 ms, for cores alone

    return core_sources.open_source(path, sysroot)


def other_program(pid: int, named: str) -> str:
    """The path of the program that a process runs, if the file ``named`` is not it; "" if it is, or if that is
    unknown."""
    link = f"/proc/{pid}/exe"
    try:
        actual, theirs = os.readlink(link), os.stat(link)  # noqa: PTH115, PTH116
    except OSError:
        return ""
    try:
        ours = os.stat(named)  # noqa: PTH116
    except OSError:
        return actual
    return "" if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino) else actual


def open_live(pid: int, standstill: Standstill = Standstill.BRIEF) -> Target:
    """A running process; an unknown PyTorch in it is measured first. One that somebody else traces, and nobody can stop
    therefore, is read as its threads sleep or stand. Raises TargetError."""
    _measure(pid)
    if standstill is Standstill.BRIEF:
        return brief_look(pid)
    if standstill is Standstill.NONE or foreign_tracer(pid):
        return unstopped(pid)
    return (asleep(pid) if standstill is Standstill.ASLEEP else None) or _held(pid)


def _held(pid: int) -> Target:
    """Process ``pid``, stopped; as it sleeps where nobody can stop one of its threads, and all of them sleep. Else
    those that cannot be stopped are read as they sleep, beside the others."""
    before = _readings(pid)
    target = ProcTarget(pid)
    target.origin.readings = before
    if target.is_stopped:
        return target
    asleep = unstopped(pid)
    if asleep.is_asleep():
        target.close()
        return asleep
    target.add_sleepers(asleep.memory.threads())
    asleep.close()
    return target


def _readings(pid: int) -> Readings | None:
    """The surroundings of a process that runs; while it stands still, nothing of it moves."""
    try:
        runs = "R" in proc_checks.thread_states(pid).values()
    except OSError:
        return None
    if not runs:
        return None
    from gdbext.engine.targets.system.surroundings import readings_ahead  # 2 ms, for --no-stop

    return readings_ahead(pid)


def open_running(pid: int) -> RunningProcess:
    """A running process, its memory alone: for what lets it run and watches. Raises TargetError."""
    _measure(pid)
    return RunningProcess(pid)


def _measure(pid: int) -> None:
    with budget.lifted():
        measure_for_process(pid, 2)


def supervised(pid: int, look: Callable[[], Outcome], without_memory: Callable[[], Outcome]) -> Outcome:
    """The outcome of ``look``, made by a child; where the kernel keeps that one, of ``without_memory``. Raises
    TargetError: nothing can be said but how the threads of the process sleep."""
    data = supervision.by_child(lambda: look().encode(), supervision.STUCK_SECONDS)
    if data is None:
        data = supervision.by_child(lambda: without_memory().encode(), supervision.SECOND_SECONDS)
    if data is None:
        raise TargetError(
            f"process {pid} cannot be read: the kernel does not answer ({supervision.sleepers(pid)})",
            why="a thread of it sleeps in the kernel with the lock of its memory, or a file system does not answer",
            help=as_root(f"cat /proc/{pid}/task/*/stack   shows where; look at the device or the file server"),
        )
    return Outcome.decode(data) or Outcome(1, error="the look ended without a report")
