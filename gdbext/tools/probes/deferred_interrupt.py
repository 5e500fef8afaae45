"""Ctrl+C, the end of --timeout and a request to end, heard at a good moment: nothing that was read gets lost.

Whether a process that nobody stops is still there, and still the same program.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from types import FrameType

from gdbext.diagnosis.report.report import Ending, EndingKind
from gdbext.engine.targets.live.local_process import read_file
from gdbext.engine.targets.system.linux import has_ended, signals_handled
from gdbext.errors import TargetGone

_STEP = 0.05
_SAME_SECONDS = 1.0
"""Seconds within which a second SIGINT is of the same wish."""
_SIGNALS = (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)


class DeferredInterrupt:
    """A context manager; ``came`` is True from the first such signal on. A second Ctrl+C interrupts at once, if it is
    a wish of its own: ``timeout -s INT`` sends one to its child, and one to the group that the child is in."""

    def __init__(self, is_heard: bool = True) -> None:
        """``is_heard`` False: the signals are a debugger's, inside which this runs."""
        self.came = False
        self._since = 0.0
        self._is_heard = is_heard
        self._handled = ExitStack()

    def __enter__(self) -> DeferredInterrupt:
        if self._is_heard and threading.current_thread() is threading.main_thread():
            self._handled.enter_context(signals_handled(_SIGNALS, self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._handled.close()

    def sleep(self, seconds: float) -> bool:
        """Sleep until that time is over or a signal came; True if the time is over."""
        until = time.monotonic() + seconds
        while not self.came and time.monotonic() < until:
            time.sleep(min(_STEP, max(0.0, until - time.monotonic())))
        return not self.came

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.came and number == signal.SIGINT and time.monotonic() - self._since > _SAME_SECONDS:
            raise KeyboardInterrupt
        if not self.came:
            self._since = time.monotonic()
        self.came = True


class WatchedProcess:
    """The process that is watched; looks into /proc only."""

    def __init__(self, pid: int) -> None:
        """Open the process. Raises TargetGone."""
        self._pid = pid
        self._start = read_file(pid, "auxv")

    def ending(self) -> Ending | None:
        """The reason why there is nothing to watch any more, None while there is."""
        try:
            stat, auxv = read_file(self._pid, "stat"), read_file(self._pid, "auxv")
        except TargetGone:
            stat = auxv = b""
        if not auxv or has_ended(stat):
            return Ending(EndingKind.GONE, "the process ended")
        if auxv != self._start:  # random bytes are at another address after each exec
            return Ending(EndingKind.REPLACED, "the process replaced itself by another program (exec)")
        return None
