"""Does a process still get on? Asked every few seconds, of /proc and of one kernel probe; nobody is stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.model.record import Record
from gdbext.targets.live.activity import Activity, activity

if TYPE_CHECKING:
    from gdbext.probes.dispatch_pulse import DispatchPulse

BUSY = 0.05
"""Of a processor: threads that wait in a timed wait, as those for Python's GIL do, use less."""
TRANSFER = 1 << 16
"""Bytes between two looks that count as progress: a line of a log does not."""
_WINDOW = 1.0
"""Seconds for which a dispatch is waited for."""


class Progress(Record):
    """``moves``: it dispatches, reads or writes, or at least computes. ``computes_only``: it computes, but a probe saw
    no dispatch."""

    moves: bool
    computes_only: bool = False


class ProgressWatch:
    """Looks at one process."""

    def __init__(self, pid: int) -> None:
        """Raises TargetGone."""
        self._pid = pid
        self._before: Activity = activity(pid)
        self._looked = time.monotonic()
        self.pulse: DispatchPulse | None = None

    def look(self) -> Progress:
        """What was done since the last look. Raises TargetGone."""
        now, then = time.monotonic(), self._looked
        current, before = activity(self._pid), self._before
        self._before, self._looked = current, now
        transferred = current.transferred - before.transferred
        computes = current.seconds - before.seconds > BUSY * (now - then)
        if transferred > TRANSFER or current.processes != before.processes:
            return Progress(True)
        if self._dispatches(now - then):
            return Progress(True)
        return Progress(computes, computes and self.pulse is not None)

    def _dispatches(self, interval: float) -> bool:
        if self.pulse is None:
            return False
        try:
            return self.pulse.beats(min(_WINDOW, interval / 2))
        except (GdbextError, OSError):
            self.pulse = None  # another user's probes, or the program was replaced: what /proc says must do
            return False
