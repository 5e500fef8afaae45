"""What threads have done, by /proc/PID/task alone, without stopping them: whether one ran, how it sleeps, counters."""

from __future__ import annotations

import os
import signal
import struct
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import number
from gdbext.engine.targets.base_target import KernelSide
from gdbext.engine.targets.live.proc_checks import thread_states
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import signals_in, stat_fields
from gdbext.engine.targets.system.proc_files import file_text, folder_names, status_fields

if TYPE_CHECKING:
    from gdbext.engine.arch import Architecture

RUNNING = "running"
"""The text of /proc/PID/task/TID/syscall for a thread that is not blocked (proc_pid_syscall(5))."""


class SleepPlace(NamedTuple):
    """Where a thread sleeps, and how much it has run. ``call`` is the text of /proc/PID/task/TID/syscall: number and
    arguments of the system call, stack pointer, program counter; or "running". ``ran`` is the text of schedstat
    (Documentation/scheduler/sched-stats.rst): time on a CPU, time in the queue, number of turns. Each is "" if it
    cannot be read."""

    call: str
    ran: str

    @property
    def stack_pointer(self) -> int | None:
        """The stack pointer while the thread sleeps, None while it runs."""
        words = self.call.split()
        return int(words[-2], 16) if len(words) > 2 else None

    @property
    def arguments(self) -> tuple[int, ...]:
        """The arguments of the system call that the thread sleeps in; () while it runs."""
        return tuple(int(word, 16) for word in self.call.split()[1:-2])

    def has_moved(self, earlier: SleepPlace) -> bool:
        """True if the thread may have run since ``earlier`` (which may have ``ran`` alone)."""
        if not self.call and not self.ran:
            return True
        if earlier.ran and not earlier.call:
            return self.call == RUNNING or self.ran != earlier.ran
        return self.call == RUNNING or self != earlier


def sleep_place(pid: int, tid: int) -> SleepPlace:
    """Where the thread sleeps now, if it does; nothing is stopped."""
    folder = f"/proc/{pid}/task/{tid}"
    # before the call: an equal value later proves that the thread is still in this very call
    ran = _run_counters(folder)
    return SleepPlace(_stripped_line(f"{folder}/syscall"), ran)


def has_moved_since(pid: int, tid: int, earlier: SleepPlace) -> bool:
    """True if the thread may have run since ``sleep_place`` read ``earlier``. schedstat counts a turn when it begins
    (sched_info_arrive, kernel/sched/stats.h): equal numbers are proof, the system call need not be read."""
    schedstat = _stripped_line(f"/proc/{pid}/task/{tid}/schedstat")
    if schedstat not in ("", _NOT_COUNTED) and schedstat == earlier.ran:
        return False
    return sleep_place(pid, tid).has_moved(earlier)


def syscall_text(pid: int, tid: int) -> str:
    """The text of /proc/PID/task/TID/syscall, "" if it cannot be read."""
    return _stripped_line(f"/proc/{pid}/task/{tid}/syscall")


def _run_counters(folder: str) -> str:
    """schedstat; the number of context switches if the kernel was built without it, or does not count."""
    schedstat = _stripped_line(f"{folder}/schedstat")
    if schedstat and schedstat != _NOT_COUNTED:
        return schedstat
    switches = _sum_of_lines(f"{folder}/status", _SWITCHES)
    return f"{switches} switches" if switches is not None else ""


_NOT_COUNTED = "0 0 0"
"""The schedstat of each thread if the kernel does not count."""
_SWITCHES = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")


def run_count(pid: int, tid: int) -> SleepPlace:
    """The SleepPlace of a thread with ``ran`` alone, which needs half of the reads; whole if ``ran`` is unknown."""
    ran = _run_counters(f"/proc/{pid}/task/{tid}")
    return SleepPlace("", ran) if ran else sleep_place(pid, tid)


def _stripped_line(path: str) -> str:
    """The text of a file of one line; "" if it cannot be read."""
    try:
        return proc_files.line(path).decode(errors="replace").rstrip()
    except OSError:
        return ""


_RSEQ = struct.Struct("<2IQ4I")
"""struct rseq (include/uapi/linux/rseq.h, Linux 6.12). glibc keeps one in every thread's block, at the outer end of the
stack for all threads but the first; an allocator may have its own. Its address is unknown without stopping the thread.
"""


def same_but_for_rseq(before: bytes, after: bytes, address: int = 0) -> bool:
    """Two copies of the memory at ``address`` are equal except for the numbers of CPU, node and concurrency that the
    kernel writes into a struct rseq (aligned to its 32 bytes) whenever it moves a thread."""
    if before == after:
        return True
    if len(before) != len(after):
        return False
    first = -address % _RSEQ.size
    bounds = [0, *range(first, len(before), _RSEQ.size), len(before)]
    pieces = ((before[low:high], after[low:high]) for low, high in zip(bounds, bounds[1:]))
    return all(old == new or _differs_in_cpu_only(old, new) for old, new in pieces)


def _differs_in_cpu_only(before: bytes, after: bytes) -> bool:
    """Two copies of 32 bytes can be a struct rseq whose numbers of CPU, node and concurrency have changed."""
    if len(before) < _RSEQ.size:
        return False
    cpus = os.sysconf("SC_NPROCESSORS_CONF")
    constants = []
    for area in (before, after):
        start_cpu, cpu, critical, flags, node, concurrency, rest = _RSEQ.unpack(area)
        if start_cpu != cpu or max(cpu, node, concurrency) >= cpus:
            return False
        constants.append((critical, flags, rest))
    return constants[0] == constants[1]


_MINOR, _MAJOR, _CPU = 10 - 3, 12 - 3, 39 - 3
"""minflt, majflt and processor of proc_pid_stat(5), counted from the state, its third field."""


class ThreadActivity(NamedTuple):
    """Counters of what a thread has done, which only grow; None if unknown."""

    nanoseconds: int | None = None
    """CPU time in nanoseconds (/proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst)."""
    switches: int | None = None
    """Context switches, voluntary and not."""
    bytes_moved: int | None = None
    """Bytes read and written by system calls (rchar, wchar)."""
    faults: int | None = None
    """Page faults, minor and major."""


def activities(pid: int) -> dict[int, ThreadActivity]:
    """Thread id → counters, of all threads of a process; {} if it has exited."""
    return {int(tid): _thread_activity(f"/proc/{pid}/task/{tid}") for tid in folder_names(f"/proc/{pid}/task")}


def _thread_activity(folder: str) -> ThreadActivity:
    """The counters of the thread of that folder (/proc/PID/task/TID)."""
    runtime = file_text(f"{folder}/schedstat").split()
    fields = stat_fields(file_text(f"{folder}/stat"))
    faults = sum(int(fields[at]) for at in (_MINOR, _MAJOR)) if len(fields) > _MAJOR else None
    return ThreadActivity(
        number(runtime[0]) if runtime else None,
        _sum_of_lines(f"{folder}/status", _SWITCHES),
        _sum_of_lines(f"{folder}/io", ("rchar", "wchar")),
        faults,
    )


def _sum_of_lines(path: str, names: tuple[str, ...]) -> int | None:
    """The sum of the numbers in the lines ``name: number`` of these names; None if there are none."""
    lines = (line.partition(":") for line in file_text(path).splitlines())
    values = [int(value) for name, _, value in lines if name in names and value.strip().isdecimal()]
    return sum(values) if values else None


_FILE_CALLS = frozenset(
    (
        *("read", "readv", "pread64", "preadv", "write", "writev", "pwrite64", "open", "openat", "close", "stat"),
        *("lstat", "fstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "getdents64"),
        *("mmap", "msync", "fsync", "fdatasync", "execve", "execveat", "unlink", "unlinkat", "rename", "renameat2"),
        *("mkdir", "ftruncate", "fallocate", "chdir", "statfs", "fstatfs", "munmap", "mlock", "madvise"),
        *("sendfile", "copy_file_range"),
    )
)
"""System calls that may wait for a disk or a file server."""


def kernel_side(pid: int, tid: int, state: str, call: str, architecture: Architecture) -> KernelSide | None:
    """How a thread sleeps in the kernel; ``state`` is its letter, ``call`` the text of its ``syscall``. None for one
    that runs, and if the system call explains the sleep. Raises nothing."""
    words = call.split()
    if not words or words[0] == RUNNING or state not in "SD":
        return None
    syscall = int(words[0])
    folder = f"/proc/{pid}/task/{tid}"
    name = architecture.syscall_names.get(syscall, "")
    is_ordinary = state == "S" and syscall != -1
    if is_ordinary and tid != pid and name not in _FILE_CALLS:
        return None
    channel = _stripped_line(f"{folder}/wchan")
    arguments = tuple(int(word, 16) for word in words[1:-2]) if syscall >= 0 else ()
    side = KernelSide(state, syscall, "" if channel == "0" else channel, arguments)
    if is_ordinary and not side.is_frozen and not (name in _FILE_CALLS and side.is_served):
        return None
    # a line each: ``[<0>] folio_wait_bit_common+0x110/0x310`` (proc_pid_stack(5))
    stack = (line.rpartition("] ")[2].partition("+")[0] for line in file_text(f"{folder}/stack").splitlines())
    with closing(SchedulerClocks()) as clocks:
        seconds = clocks.seconds_since_run(folder)
    return side._replace(stack=tuple(stack), seconds=None if seconds is None else round(seconds, 2))


class SchedulerClocks:
    """The scheduler's clocks, one for each CPU, which differ by the time that interrupts and hosts have taken. The time
    at which a thread last ran is se.exec_start of /proc/PID/task/TID/sched (kernel/sched/debug.c), by the clock of its
    last CPU. The time now is our own value there, so a clock is read by running on its CPU for a moment; call ``close``
    afterwards."""

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0)
        self._now: dict[int, float | None] = {}  # by CPU

    def seconds_since_run(self, folder: str) -> float | None:
        """Seconds since the thread of that folder (/proc/PID/task/TID) last ran, 0 if it runs or is ready to; None if
        unknown. Raises nothing. The time now is read first: it may take a second until we get that CPU, and the thread
        may run then."""
        fields = stat_fields(file_text(f"{folder}/stat"))
        if len(fields) <= _CPU:
            return None
        if fields[0] == "R":
            return 0.0
        now, before = self._clock_ms(int(fields[_CPU])), _last_run_ms(f"{folder}/sched")
        return None if now is None or before is None else max(0.0, (now - before) / 1e3)

    def _clock_ms(self, cpu: int) -> float | None:
        """Milliseconds on that CPU's clock; None if unknown, or we may not run there."""
        if cpu not in self._now:
            self._now[cpu] = None
            with suppress(OSError, ValueError):
                os.sched_setaffinity(0, {cpu})
                self._now[cpu] = _last_run_ms("/proc/thread-self/sched")
        return self._now[cpu]

    def close(self) -> None:
        """Let this thread run again on the CPUs that it was allowed before."""
        os.sched_setaffinity(0, self._allowed)


def _last_run_ms(path: str) -> float | None:
    """se.exec_start in a file ``sched``, in milliseconds of the CPU's clock; None if unknown."""
    line = next((line for line in file_text(path).splitlines() if line.startswith("se.exec_start")), "")
    with suppress(ValueError):
        return float(line.partition(":")[2])
    return None


_SIGSTOP_BIT = 1 << (19 - 1)


def has_no_stop_pending(pid: int, tid: int, earlier: ThreadActivity | None) -> bool:
    """No SIGSTOP is on its way to the thread: none is pending, and it sleeps, or has run for a millisecond since
    ``earlier``, which puts it past the signals that it had."""
    status = status_fields(f"/proc/{pid}/task/{tid}/status")
    if status.get("TracerPid", "0") != "0" or (signals_in(status, "SigPnd", "ShdPnd") or 0) & _SIGSTOP_BIT:
        return False
    if status.get("State", "Z")[0] != "R":
        return True
    now = activities(pid).get(tid, ThreadActivity()).nanoseconds
    before = earlier.nanoseconds if earlier else None
    return now is None or (before is not None and now - before > 1_000_000)


def will_stop(pid: int) -> bool:
    """A SIGSTOP is pending for a thread that sleeps uninterruptibly and is not traced any more."""
    asleep = [tid for tid, state in thread_states(pid).items() if state == "D"]
    return any(
        (signals_in(status, "SigPnd") or 0) & _SIGSTOP_BIT and status.get("TracerPid", "0") == "0"
        for status in (status_fields(f"/proc/{pid}/task/{tid}/status") for tid in asleep)
    )


def is_stopped(pid: int) -> bool:
    """Some thread is stopped by a signal (state T); False for process 0."""
    with suppress(OSError):
        return "T" in thread_states(pid).values()
    return False


def undo_stop(pid: int) -> None:
    """Resume a process that was left with SIGSTOPs, one per thread, by a debugger that detached or exited while it
    stopped it; no effect on one that runs. Waits at most 5 seconds until the SIGSTOPs arrive: each thread must run."""
    deadline, earlier = time.monotonic() + 5.0, activities(pid)
    with suppress(OSError):  # it has just exited
        while time.monotonic() < deadline:
            if is_stopped(pid) or will_stop(pid):
                os.kill(pid, signal.SIGCONT)
            elif all(has_no_stop_pending(pid, tid, earlier.get(tid)) for tid in thread_states(pid)):
                return
            time.sleep(0.005)
