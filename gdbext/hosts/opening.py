"""Opens a process, a core or a recording without a debugger, for scripts/dispatch and the library.

An inspection that the kernel may never answer is supervised (engine/targets/live/supervision.py).
"""

from __future__ import annotations

import os
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from gdbext.engine.glibc.pthread import asleep, briefly_stopped, unstopped
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

    from gdbext.engine.targets.base_target import Target


class Standstill(Enum):
    """How long a live process is stopped to be examined."""

    BRIEF = "is not stopped if all its threads sleep, else is stopped for some milliseconds"
    ASLEEP = "is not stopped if all its threads sleep, else is stopped until it is closed"
    HELD = "is stopped until it is closed"
    NONE = "is not stopped: running threads are reported as unknown"


def open_recording(path: str) -> Target:
    """Raises BadRecording."""
    from gdbext.engine.targets.recording.replay_target import ReplayTarget  # 4 ms, for recordings

    return ReplayTarget.load(path)


def open_core(path: str, sysroot: str = "") -> Target:
    """A core dump, by its name, compressed or not, or of systemd's store; or a process while the kernel dumps it.
    ``sysroot`` is the folder with the files of its machine. Raises BadCore."""
    from gdbext.engine.targets import core_sources  # 8 ms, for cores alone

    return core_sources.open_source(path, sysroot)


def other_program(pid: int, named: str) -> str:
    """The path of the program that a process runs, if it is another file than ``named``; else ""."""
    link = f"/proc/{pid}/exe"
    try:
        actual, status = os.readlink(link), os.stat(link)  # noqa: PTH115, PTH116
    except OSError:
        return ""
    try:
        return "" if os.path.samestat(os.stat(named), status) else actual  # noqa: PTH116
    except OSError:
        return actual


def open_live(pid: int, standstill: Standstill = Standstill.BRIEF) -> Target:
    """A running process; an unknown PyTorch in it is measured first. A process that another one traces cannot be
    stopped, and is read as it runs. Raises TargetError."""
    _measure(pid)
    if standstill is Standstill.BRIEF:
        return briefly_stopped(pid)
    if standstill is Standstill.NONE or foreign_tracer(pid):
        return unstopped(pid)
    return (asleep(pid) if standstill is Standstill.ASLEEP else None) or _stopped(pid)


def _stopped(pid: int) -> Target:
    """The process, stopped until it is closed. Threads that cannot be stopped, as they sleep in the kernel, are read as
    they sleep; if all threads sleep, none is stopped."""
    readings = None
    with suppress(OSError):
        if "R" in proc_checks.thread_states(pid).values():  # counters of its surroundings, which change while it runs
            from gdbext.engine.targets.system.surroundings import readings_before_stop  # 2 ms, for --no-stop

            readings = readings_before_stop(pid)
    target = ProcTarget(pid)
    target.origin.readings = readings
    if target.is_stopped:
        return target
    sleeping = unstopped(pid)
    if sleeping.all_threads_sleep():
        target.close()
        return sleeping
    target.add_sleepers(sleeping.memory.threads())
    sleeping.close()
    return target


def open_running(pid: int) -> RunningProcess:
    """The memory of a running process, for commands that watch it. Raises TargetError."""
    _measure(pid)
    return RunningProcess(pid)


def _measure(pid: int) -> None:
    """Derive the struct layouts of an unknown PyTorch in the process, with progress on standard error."""
    with budget.without_limits():
        measure_for_process(pid, 2)


def supervised(pid: int, examine: Callable[[], Outcome], without_memory: Callable[[], Outcome]) -> Outcome:
    """The outcome of ``examine``, or of ``without_memory`` if that hangs in the kernel. Raises TargetError."""
    data = supervision.run_in_child(lambda: examine().encode(), supervision.STUCK_SECONDS)
    if data is None:
        data = supervision.run_in_child(lambda: without_memory().encode(), supervision.SECOND_SECONDS)
    if data is None:
        raise TargetError(
            f"process {pid} cannot be read: the kernel does not answer ({supervision.thread_states_text(pid)})",
            why="one of its threads sleeps in the kernel and holds its mmap lock, or a file system does not answer",
            help=as_root(f"cat /proc/{pid}/task/*/stack   shows where; check the device or the file server"),
        )
    return Outcome.decode(data) or Outcome(1, error="the examination ended without a report")
