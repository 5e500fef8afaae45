"""Ctrl+C, the end of --timeout and a request to end, heard at a good moment: nothing that was read gets lost."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

_STEP = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)


class LateInterrupt:
    """A context manager; ``came`` is True from the first such signal on. A second Ctrl+C interrupts at once."""

    def __init__(self) -> None:
        self.came = False
        self._before: list[tuple[signal.Signals, Any]] = []

    def __enter__(self) -> LateInterrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = [(number, signal.signal(number, self._note)) for number in _SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def sleep(self, seconds: float) -> bool:
        """Until that time is over or a signal came; whether the time is over."""
        until = time.monotonic() + seconds
        while not self.came and time.monotonic() < until:
            time.sleep(min(_STEP, max(0.0, until - time.monotonic())))
        return not self.came

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.came and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.came = True
