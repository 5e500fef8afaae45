"""Limits of the memory and time that an inspection takes, and its garbage collection.

In our own process (MemoryLimit, TimeLimit) the kernel counts memory (RLIMIT_DATA: private memory, not mapped files) and
a timer ends the inspection; if it cannot, the kernel kills us. In a process that is not ours, a debugger or the program
that uses the library (BudgetWatch), no permanent limit is set: a thread measures the memory that the process has
gained, and the seconds, and interrupts the inspection between two steps of Python; the work of one step is bounded
(documents and tables have limits).
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING

from gdbext.engine.targets.system.linux import signals_blocked
from gdbext.errors import TargetError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def raise_gc_threshold() -> None:
    """Collect garbage rarely in the whole process, which must be ours. A report makes many objects and hardly any
    cycles; collecting after every 700, as Python does by default, was 4 % of its time."""
    gc.set_threshold(1_000_000)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """No search for cycles inside: if millions of objects without cycles are made, it takes a quarter of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


MAX_MEMORY = 1 << 20
"""The largest memory limit, in gigabytes."""
MEMORY = 1 << 30
SECONDS = 60.0
_REPEAT_SECONDS = 10.0
"""Seconds until an interruption that was lost (in a destructor, say) is repeated."""
_GRACE = 15.0
"""CPU seconds for a function of C after the time limit."""
STATM_RESIDENT, STATM_SHARED, STATM_DATA = 1, 2, 5


class TimeLimitExceeded(BaseException):
    """BaseException, so that code that handles the errors of one thread does not swallow it."""


class MemoryLimitExceeded(BaseException):
    """BaseException, as TimeLimitExceeded."""


ANY_SOURCE = "process, core or recording"
_RESUMED = {"process": "; the process was resumed", ANY_SOURCE: "; a live process was resumed"}


def time_error(seconds: float, source: str, help: str = "give more time with --timeout SECONDS") -> TargetError:
    """The error of an inspection that took more than ``seconds``; ``source``: what was examined ("core")."""
    return TargetError(
        f"no report within {seconds:g} s",
        why=f"the {source} is large, the machine is busy or the disk slow (libraries are read once)",
        help=help + _RESUMED.get(source, ""),
    )


def memory_error(source: str, help: str = "allow more with --memory-limit GB (default 1)") -> TargetError:
    """The error of an inspection that took too much memory; ``source`` as of time_error()."""
    return TargetError(
        "the examination exceeds its memory limit",
        why=f"the {source} is very large, or its memory, a file or a document is damaged, or crafted to exhaust memory",
        help=help + _RESUMED.get(source, ""),
    )


class MemoryLimit:
    """A context manager: this process gets at most ``size`` bytes more inside (then MemoryError), 0 for no limit."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._before: tuple[int, int] | None = None

    def __enter__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = statm()[STATM_DATA] + self._size
        if self._size and (soft == resource.RLIM_INFINITY or wanted < soft):
            self._before = soft, hard
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))

    def __exit__(self, *_: object) -> None:
        if self._before:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)


def make_room() -> None:
    """Raise the limit of this process by 64 MB, for reporting the error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_DATA, (min(soft + (64 << 20), most), hard))


@contextlib.contextmanager
def without_limits() -> Iterator[None]:
    """No limit inside, nor for processes that are started there: measuring has limits of its own."""
    before = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_DATA, resource.RLIMIT_CPU)}
    for kind, (_, hard) in before.items():
        resource.setrlimit(kind, (hard, hard))
    left, again = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, again)
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


class TimeLimit:
    """A context manager: raises ``error`` in the main thread after ``seconds``, None for no limit."""

    def __init__(self, seconds: float | None, error: type[BaseException] = TimeLimitExceeded) -> None:
        self._seconds = seconds
        self._error = error

    def __enter__(self) -> None:
        if self._seconds is not None:
            signal.signal(signal.SIGALRM, self._expired)
            signal.setitimer(signal.ITIMER_REAL, self._seconds, _REPEAT_SECONDS)
            self._limit_cpu(self._seconds + _GRACE)

    def __exit__(self, *_: object) -> None:
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._limit_cpu(None)

    def _limit_cpu(self, seconds: float | None) -> None:
        """Limit the CPU time: while a function of C does not return, no handler of Python runs; then the kernel kills
        us by SIGXCPU, and so detaches the process."""
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        wanted = hard if seconds is None else int(time.process_time() + min(seconds, 86400)) + 1
        if hard == resource.RLIM_INFINITY or wanted <= hard:
            resource.setrlimit(resource.RLIMIT_CPU, (wanted, hard))

    def _expired(self, *_: object) -> None:
        raise self._error


def statm() -> list[int]:
    """The bytes of /proc/self/statm (proc_pid_statm(5)), by STATM_RESIDENT and so on."""
    with open("/proc/self/statm", "rb") as file:
        return [int(word) * os.sysconf("SC_PAGE_SIZE") for word in file.read().split()]


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_SECONDS = 1e9
"""The longest duration, 30 years."""


def duration(text: str, option: str, most: float = MAX_SECONDS, *, is_endless: bool = False) -> float:
    """Seconds of a duration as timeout(1) takes it, a number with an optional unit, for ``option``. ``is_endless``: 0
    means no limit, and longer durations become ``most``. Raises UsageError."""
    seconds = -1.0
    with contextlib.suppress(ValueError):
        seconds = float(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else float(text)
    if is_endless and seconds >= 0:
        return min(seconds, most)
    if not 0 < seconds <= most:
        bounds = "of at least 0" if is_endless else f"greater than 0, and at most {most:g}"
        raise UsageError(
            f"{option}: {text!r} is not a number of seconds {bounds}",
            help="give a number, or one with s, m, h or d behind it: 90, 1.5m",
        )
    return seconds


def memory_size(value: str) -> int:
    """The bytes of a number of gigabytes, the value of --memory-limit. Raises UsageError."""
    gigabytes = 0.0
    with contextlib.suppress(ValueError):
        gigabytes = float(value)
    if not 0 < gigabytes <= MAX_MEMORY:
        raise UsageError(f"--memory-limit: {value!r} is not a number of gigabytes up to {MAX_MEMORY}")
    return int(gigabytes * (1 << 30))


_STEP = 0.1
"""Seconds between two checks: a loop of Python can gain some tens of megabytes in between."""


class BudgetWatch:
    """Raises TimeLimitExceeded or MemoryLimitExceeded in the thread that called ``begin``, until ``end``."""

    def __init__(
        self, seconds: float = SECONDS, memory: int = MEMORY, clock: Callable[[], float] = time.process_time
    ) -> None:
        """``seconds`` of this ``clock``, by default CPU time (a compiler that measures a layout has limits of its own);
        ``memory``: bytes to gain. 0 is no limit."""
        self._seconds = seconds
        self._memory = memory
        self._clock = clock
        self._is_on = False

    def begin(self) -> None:
        """Start: memory that the debugger has by now does not count. Calls after the first do nothing."""
        if self._is_on or not (self._seconds or self._memory):
            return
        self._watched_thread = _thread.get_ident()
        self._end_lock = _thread.allocate_lock()  # held until end()
        self._end_lock.acquire()
        self._interrupt_lock = _thread.allocate_lock()  # held while the thread is interrupted
        # signals are the debugger's: none may reach a thread of ours
        with signals_blocked():
            self._is_on = True
            _thread.start_new_thread(self._watch, ())

    def end(self) -> None:
        """End the limits. A pending interruption is raised before this returns."""
        if self._is_on:
            self._is_on = False
            with self._interrupt_lock:
                self._end_lock.release()

    def _watch(self) -> None:
        """Check clock and memory every _STEP seconds, in a thread of ours, until the end or the first excess."""
        memory, seconds = _private_memory(), self._clock()
        error: type[BaseException] | None = None
        while not error and not self._end_lock.acquire(timeout=_STEP):
            if self._seconds and self._clock() - seconds > self._seconds:
                error = TimeLimitExceeded
            elif self._memory and _private_memory() - memory > self._memory:
                error = MemoryLimitExceeded
        if error:
            self._interrupt(error)

    def _interrupt(self, error: type[BaseException]) -> None:
        """Raise ``error`` in the watched thread, unless the limits have ended."""
        with self._interrupt_lock:
            if self._end_lock.locked():
                thread = ctypes.c_ulong(self._watched_thread)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(error))


def _private_memory() -> int:
    """Bytes of memory of this process alone, approximately: files are shared."""
    fields = statm()
    return fields[STATM_RESIDENT] - fields[STATM_SHARED]


class CallLimits:
    """Limits of each call of the library, in the user's own program. Calls may nest."""

    def __init__(self, seconds: float | None = None, gigabytes: float | None = None, source: str = ANY_SOURCE) -> None:
        """None: no limit; ``source`` as of time_error(). Raises UsageError."""
        self._source = source
        for name, value in (("timeout", seconds), ("memory_limit", gigabytes)):
            if value is not None and not 0 < value <= MAX_MEMORY:  # gigabytes; as seconds twelve days
                raise UsageError(f"{name} must be greater than 0, and at most {MAX_MEMORY}", help="None is no limit")
        self._seconds = seconds or 0.0
        self._memory = int((gigabytes or 0) * (1 << 30))
        self._is_on = False

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Limit the outermost call. Raises TargetError if it takes too much."""
        if self._is_on or not (self._seconds or self._memory):
            yield
            return
        watched = BudgetWatch(self._seconds, self._memory, time.monotonic)
        self._is_on = True
        try:
            watched.begin()
            try:
                yield
            finally:
                watched.end()
        except TimeLimitExceeded:
            raise time_error(self._seconds, self._source, "give gdbext.open() a larger timeout") from None
        except (MemoryLimitExceeded, MemoryError):
            raise memory_error(self._source, "give gdbext.open() a larger memory_limit") from None
        finally:
            self._is_on = False
