"""Opens a process, a core or a recording without a debugger, for scripts/dispatch and the library.

A look that the kernel may never answer: it is done by a child of ours, which can be left behind.

/proc/PID/{cmdline,environ,maps,mem} and ptrace wait for locks that a process in the kernel may keep for ever; a file of
a dead server is never read. No signal but SIGKILL, and at times not even that, ends such a wait. So where a thread of
the process is in uninterruptible sleep, or file systems are mounted that need a server, a child looks. Once the kernel
has not let it go on for two seconds it is given up, and another one says what can be said without the process's memory.
"""

from __future__ import annotations

import os
import select
import signal
import time
from enum import Enum

from gdbext.engine.targets import budget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gdbext.engine.targets.base_target import Readings, Target
    from gdbext.engine.targets.live.unstopped import RunningProcess
    from gdbext.tools.table import Outcome


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
    """A core dump, by its name, compressed or not, or of systemd's store; or a process while the kernel dumps it.
    ``sysroot`` is where the files of its machine are. Raises BadCore."""
    from gdbext.engine.targets import packed_core
    from gdbext.engine.targets.core_target import CoreTarget
    from gdbext.engine.targets.live import dying_process

    if path.startswith(dying_process.SOURCE):
        return dying_process.DyingProcess.named(path)
    path = packed_core.stored(path)
    unpacked = packed_core.unpacked(path)
    try:
        return CoreTarget(path, sysroot, unpacked)
    finally:
        packed_core.let_go(unpacked)


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

    before = _readings(pid)
    target = ProcTarget(pid)
    target.readings = before
    if target.is_stopped:
        return target
    from gdbext.engine.glibc.brief_look import unstopped

    asleep = unstopped(pid)
    if asleep.is_asleep():
        target.close()
        return asleep
    asleep.close()
    return target


def _readings(pid: int) -> Readings | None:
    """The surroundings of a process that runs; while it stands still, nothing of it moves."""
    from gdbext.engine.targets.live import proc_checks

    try:
        runs = "R" in proc_checks.thread_states(pid).values()
    except OSError:
        return None
    if not runs:
        return None
    from gdbext.engine.targets.system.surroundings import readings_ahead

    return readings_ahead(pid)


def open_running(pid: int) -> RunningProcess:
    """A running process, its memory alone: for what lets it run and watches. Raises TargetError."""
    from gdbext.engine.targets.live.unstopped import RunningProcess

    _measure(pid)
    return RunningProcess(pid)


def _measure(pid: int) -> None:
    from gdbext.engine.layouts.measure.measure_ahead import measure_for_process

    with budget.lifted():
        measure_for_process(pid, 2)


STUCK_SECONDS = 2.0
"""Seconds after which a child that the kernel does not let go on is given up."""
SECOND_SECONDS = 1.5
"""The same of the second child, which reads less."""
_STEP = 0.05
_PIPE_SIZE = 1 << 16


def is_suspect(pid: int) -> bool:
    """The kernel may keep whoever reads this process: one of its threads is in uninterruptible sleep, or a file system
    is mounted that needs a server to answer."""
    from gdbext.engine.targets.live import proc_checks

    try:
        states = proc_checks.thread_states(pid)
    except OSError:
        return False
    return "D" in states.values() or proc_checks.needs_servers(pid)


def check_can_stop(pid: int) -> None:
    """A debugger can stop the process. Raises TargetError: one of its threads sleeps uninterruptibly, so that a
    debugger would wait for it without end, and stay its tracer."""
    from gdbext.engine.arch import architectures
    from gdbext.engine.targets.live import proc_checks
    from gdbext.engine.targets.live.thread_motion import call_of, kernel_side
    from gdbext.errors import TargetError

    architecture = architectures.own()
    if architecture is None:
        return
    for tid, (state, name) in proc_checks.thread_stats(pid).items():
        side = kernel_side(pid, tid, state, call_of(pid, tid), architecture) if state == "D" else None
        if side is not None and side.stands:
            raise TargetError(
                f"process {pid} cannot be stopped: thread {tid} ({name}) sleeps uninterruptibly ({side.where})",
                why="a debugger would wait for it without end, and nobody else could look at the process meanwhile",
                help=f"use: --debugger none, which needs no stop, as in: scripts/dispatch -p {pid}",
            )


def supervised(pid: int, look: Callable[[], Outcome], without_memory: Callable[[], Outcome]) -> Outcome:
    """The outcome of ``look``, made by a child; where the kernel keeps that one, of ``without_memory``. Raises
    TargetError: nothing can be said but how the threads of the process sleep."""
    from gdbext.errors import TargetError

    outcome = _by_child(look, STUCK_SECONDS)
    if outcome is None:
        outcome = _by_child(without_memory, SECOND_SECONDS)
    if outcome is None:
        raise TargetError(
            f"process {pid} cannot be read: the kernel does not answer ({_sleepers(pid)})",
            why="a thread of it sleeps in the kernel with the lock of its memory, or a file system does not answer",
            help=f"as root: cat /proc/{pid}/task/*/stack   shows where; look at the device or the file server",
        )
    return outcome


def _by_child(look: Callable[[], Outcome], seconds: float) -> Outcome | None:
    """The outcome that a child of ours sends; None once the kernel has kept it for that many seconds."""
    output, into = os.pipe()
    child = os.fork()
    if not child:
        os.close(output)
        _tell(look, into)
    os.close(into)
    try:
        return _received(child, output, seconds)
    finally:
        os.close(output)
        _end(child)


def _tell(look: Callable[[], Outcome], into: int) -> None:
    """Look, write the outcome into a pipe, and end this process."""
    try:
        data = memoryview(look().encode())
        while data:
            data = data[os.write(into, data) :]
    finally:
        os._exit(0)


def _received(child: int, output: int, seconds: float) -> Outcome | None:
    from gdbext.engine.targets.live.thread_motion import SleepPlace, place_of
    from gdbext.tools.table import Outcome

    data, kept, since = bytearray(), SleepPlace("", ""), time.monotonic()
    while True:
        ready, _, _ = select.select([output], [], [], _STEP)
        if ready:
            found = os.read(output, _PIPE_SIZE)
            if not found:
                return Outcome.decode(bytes(data)) or Outcome(1, error="the look ended without a report")
            data += found
            continue
        place = place_of(child, child)
        if place != kept or not _is_kept(child, place.call):
            kept, since = place, time.monotonic()
        elif time.monotonic() - since >= seconds:
            return None


def _is_kept(child: int, call: str) -> bool:
    """The kernel does not let our child go on: it sleeps uninterruptibly, waits for a file server, or for ptrace."""
    from gdbext.engine.arch import architectures
    from gdbext.engine.targets.live import proc_checks
    from gdbext.engine.targets.live.thread_motion import kernel_side

    architecture = architectures.own()
    try:
        state = proc_checks.thread_state(child, child)
    except OSError:
        return False
    if state == "D" or architecture is None:
        return state == "D"
    side = kernel_side(child, child, state, call, architecture)
    number = call.partition(" ")[0]
    waits_for_ptrace = number.isdecimal() and architecture.syscall_names.get(int(number)) == "ptrace"
    return waits_for_ptrace or (side is not None and side.is_served)


def _end(child: int) -> None:
    """Kill our child, and collect it unless the kernel keeps even a process that is killed."""
    deadline = time.monotonic() + 4 * _STEP
    while time.monotonic() < deadline:
        found, _ = os.waitpid(child, os.WNOHANG)
        if found:
            return
        os.kill(child, signal.SIGKILL)
        time.sleep(0.001)


def _sleepers(pid: int) -> str:
    from gdbext.engine.targets.live import proc_checks

    try:
        states = proc_checks.thread_stats(pid)
    except OSError:
        return "it has ended"
    return ", ".join(f"thread {tid} ({name}): state {state}" for tid, (state, name) in sorted(states.items())[:4])
