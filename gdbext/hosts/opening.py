"""Opens a process, a core or a recording without a debugger, for scripts/dispatch and the library."""

from __future__ import annotations

from enum import Enum

from gdbext.engine.targets import budget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Target
    from gdbext.engine.targets.live.unstopped import RunningProcess


class Standstill(Enum):
    """The choice whether a live process stands still while it is looked at."""

    BRIEF = "is not stopped where all of its threads sleep, else for some milliseconds"
    HELD = "stands still until it is closed"
    NONE = "is not stopped: what its running threads do is unknown"


def open_recording(path: str) -> Target:
    """Open a recording. Raises BadRecording."""
    from gdbext.engine.targets.recording.replay_target import ReplayTarget

    return ReplayTarget.load(path)


def open_core(path: str, sysroot: str = "") -> Target:
    """A core dump; ``sysroot`` is where the files of its machine are. Raises BadCore."""
    from gdbext.engine.targets.core_target import CoreTarget

    return CoreTarget(path, sysroot)


def open_live(pid: int, standstill: Standstill = Standstill.BRIEF) -> Target:
    """A running process; an unknown PyTorch in it is measured first. Raises TargetError."""
    _measure(pid)
    if standstill is Standstill.NONE:
        from gdbext.engine.glibc.brief_look import unstopped

        return unstopped(pid)
    if standstill is Standstill.HELD:
        return _held(pid)
    from gdbext.engine.glibc.brief_look import brief_look

    return brief_look(pid)


def _held(pid: int) -> Target:
    """Process ``pid``, stopped; as it sleeps where nobody can stop one of its threads, and all of them sleep."""
    from gdbext.engine.targets.live.proc_target import ProcTarget

    target = ProcTarget(pid)
    if target.is_stopped:
        return target
    from gdbext.engine.glibc.brief_look import unstopped

    asleep = unstopped(pid)
    if asleep.is_asleep():
        target.close()
        return asleep
    asleep.close()
    return target


def open_running(pid: int) -> RunningProcess:
    """A running process, its memory alone: for what lets it run and watches. Raises TargetError."""
    from gdbext.engine.targets.live.unstopped import RunningProcess

    _measure(pid)
    return RunningProcess(pid)


def _measure(pid: int) -> None:
    from gdbext.engine.layouts.measure.measure_ahead import measure_for_process

    with budget.lifted():
        measure_for_process(pid, 2)
