"""Limits of an inspection in a process that is not ours: a debugger, or the program that uses the library.

No permanent limit is set. A separate thread measures the memory that the process has gained, and the seconds, and
interrupts the inspection between two steps of Python; the work of one step is bounded (documents and tables have
limits).
"""

from __future__ import annotations

import _thread
import contextlib
import time
from typing import TYPE_CHECKING

from gdbext.engine.targets.budget import (
    MAX_MEMORY,
    MEMORY,
    SECONDS,
    STATM_RESIDENT,
    STATM_SHARED,
    MemoryLimitExceeded,
    TimeLimitExceeded,
    memory_error,
    statm,
    time_error,
)
from gdbext.engine.targets.system.linux import signals_blocked
from gdbext.errors import UsageError

try:
    import ctypes
except ImportError:  # Python may be built without it
    ctypes = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STEP = 0.1
"""Seconds between two checks: a loop of Python can gain some tens of megabytes in between."""


class BudgetWatch:
    """Raises TimeLimitExceeded or MemoryLimitExceeded in the thread that called ``begin``, until ``end``.

    ``seconds`` are CPU time, unless another ``clock`` is given: a compiler that measures a layout meanwhile has limits
    of its own. 0 is no limit of that kind.
    """

    def __init__(
        self, seconds: float = SECONDS, memory: int = MEMORY, clock: Callable[[], float] = time.process_time
    ) -> None:
        self._seconds = seconds
        self._memory = memory
        self._clock = clock
        self._is_on = False

    def begin(self) -> None:
        """Start: memory that the debugger has by now does not count. Calls after the first do nothing."""
        if self._is_on or not (self._seconds or self._memory):
            return
        self._looking = _thread.get_ident()
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._telling = _thread.allocate_lock()
        # signals are the debugger's: none may reach a thread of ours
        with signals_blocked():
            self._is_on = True
            _thread.start_new_thread(self._watch, ())

    def end(self) -> None:
        """End the limits. A pending interruption is raised before this returns."""
        if self._is_on:
            self._is_on = False
            with self._telling:
                self._ended.release()

    def _watch(self) -> None:
        memory, seconds = _private_memory(), self._clock()
        error: type[BaseException] | None = None
        while not error and not self._ended.acquire(timeout=_STEP):
            if self._seconds and self._clock() - seconds > self._seconds:
                error = TimeLimitExceeded
            elif self._memory and _private_memory() - memory > self._memory:
                error = MemoryLimitExceeded
        if error:
            self._interrupt(error)

    def _interrupt(self, error: type[BaseException]) -> None:
        if not ctypes:  # as Ctrl+C then
            _thread.interrupt_main()
            return
        with self._telling:
            if self._ended.locked():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._looking), ctypes.py_object(error))


def _private_memory() -> int:
    """Bytes of memory of this process alone, approximately: files are shared."""
    fields = statm()
    return fields[STATM_RESIDENT] - fields[STATM_SHARED]


class CallLimits:
    """Limits of each call of the library, in the user's own program: TargetError if the call takes too much. Calls may
    nest."""

    def __init__(self, seconds: float | None = None, gigabytes: float | None = None) -> None:
        """None: no limit. Raises UsageError."""
        for name, value in (("timeout", seconds), ("memory_limit", gigabytes)):
            if value is not None and not 0 < value <= MAX_MEMORY:  # gigabytes; as seconds twelve days
                raise UsageError(f"{name} must be greater than 0, and at most {MAX_MEMORY}", help="None is no limit")
        self._seconds = seconds or 0.0
        self._memory = int((gigabytes or 0) * (1 << 30))
        self._is_on = False

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
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
            hint = "give gdbext.open() a larger timeout; the process was resumed"
            raise time_error(self._seconds, hint) from None
        except (MemoryLimitExceeded, MemoryError):
            raise memory_error("give gdbext.open() a larger memory_limit; the process was resumed") from None
        finally:
            self._is_on = False
