"""Ctrl+C while a command of ours runs.

LLDB only notes it and leaves it to the command to ask, which it must do in its own thread (LLDB 17), and that is busy.
So for as long as a command runs the signal is Python's: a command that reads is ended by KeyboardInterrupt, as in gdb;
one that lets the process run has it stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ACTION_SIZE = 512
"""More than ``struct sigaction`` has anywhere; it is only kept, to be put back."""


class Interruption:
    """Takes SIGINT for the duration of a command. Elsewhere than in the thread that Python handles signals in, as in an
    editor, there is no Ctrl+C, and nothing is taken."""

    def __init__(self) -> None:
        self.happened = False
        self._before: ctypes.Array[ctypes.c_char] | None = None
        self._stop: Callable[[], None] | None = None

    def begin(self) -> None:
        """A command begins."""
        self.happened = False
        before = ctypes.create_string_buffer(_ACTION_SIZE)
        ctypes.CDLL(None).sigaction(signal.SIGINT, None, before)  # LLDB's own, which Python does not know
        try:
            signal.signal(signal.SIGINT, self._interrupted)
        except ValueError:
            return
        self._before = before

    def end(self) -> None:
        """The command has ended; idempotent."""
        before, self._before = self._before, None
        if before is not None:
            ctypes.CDLL(None).sigaction(signal.SIGINT, before, None)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        self.happened = True
        if self._stop is None:
            raise KeyboardInterrupt

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """While LLDB lets the process run no Python does in this thread: another one calls ``stop``."""
        if self._before is None:
            yield
            return
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        thread = threading.Thread(target=self._wait, args=(ours, stop), daemon=True)
        self._stop = stop
        wakeup = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            os.close(theirs)
            thread.join()
            os.close(ours)
            self._stop = None

    def _wait(self, signals: int, stop: Callable[[], None]) -> None:
        while True:
            number = os.read(signals, 1)
            if not number:
                return
            if number[0] == signal.SIGINT:
                self.happened = True
                stop()
