"""Limits of one call of the library: how long it may take, and how much memory.

The process is the user's own program, whose signals and limits are not ours to set: a thread beside the call watches
the clock and what the program gains, and interrupts the call between two steps of Python.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from gdbext.engine.targets import budget
from gdbext.errors import UsageError

_LARGEST = budget.MAX_MEMORY
"""Gigabytes, and seconds: twelve days."""
_MORE_TIME = "give gdbext.open() a larger timeout; the process was let go and goes on"
_MORE_MEMORY = "give gdbext.open() a larger memory_limit; the process was let go and goes on"


class CallLimits:
    """A context for each call that reads: raises TargetError where the call takes too much. Calls may nest."""

    def __init__(self, seconds: float | None = None, gigabytes: float | None = None) -> None:
        """None: no limit. Raises UsageError."""
        for name, value in (("timeout", seconds), ("memory_limit", gigabytes)):
            if value is not None and not 0 < value <= _LARGEST:
                raise UsageError(f"{name} must be greater than 0, and at most {_LARGEST}", help="None is no limit")
        self._seconds = seconds or 0.0
        self._memory = int((gigabytes or 0) * (1 << 30))
        self._is_on = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Raises TargetError when the time or the memory is used up."""
        if self._is_on or not (self._seconds or self._memory):
            yield
            return
        watched = budget.BudgetWatch(self._seconds, self._memory, time.monotonic)
        self._is_on = True
        try:
            watched.begin()
            try:
                yield
            finally:
                watched.end()
        except budget.TimeIsUp:
            raise budget.time_error(self._seconds, _MORE_TIME) from None
        except (budget.MemoryIsUp, MemoryError):
            raise budget.memory_error(_MORE_MEMORY) from None
        finally:
            self._is_on = False
