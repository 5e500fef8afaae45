"""Ends a live command as Ctrl+C does when its debugger is asked to exit, or when the launcher has exited.

A debugger that exits by itself while the process runs can leave breakpoint instructions there, and the next thread that
reaches one is killed by SIGTRAP. So a request to exit first stops the process; the ordinary way out then removes the
breakpoints and detaches.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gdbext.engine.targets.system.linux import ENDING_SIGNALS, actions_restored, signals_blocked

if TYPE_CHECKING:
    from types import FrameType

_AGAIN = 2.0
"""Seconds after which a command that has not ended is interrupted once more: a debugger can lose an interrupt that
arrives before it has resumed the process."""


class EndRequests:
    """The requests to end that reach one debugger."""

    def __init__(self, launcher: int = -1) -> None:
        """``launcher``: the read end of a pipe that the launcher closes when the command is to end, and that the kernel
        closes when the launcher exits; -1 in a user's debugger, which exits by itself afterwards."""
        self._launcher = launcher
        self._received = 0

    def hold(self) -> None:
        """Keep the signals from ending a debugger of ours, while it attaches and detaches, too: asked to exit in the
        middle of attaching, gdb 13 kills the process."""
        for number in ENDING_SIGNALS:
            signal.signal(number, self._note)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Interrupt this thread as Ctrl+C does when there is a request. Does nothing outside the main thread, the only
        one that Python delivers signals to."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with actions_restored(ENDING_SIGNALS):
            self.hold()
            signals, written = os.pipe()
            os.set_blocking(written, False)
            before = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
            over = threading.Event()
            thread = threading.Thread(target=self._watch, args=(signals, over), daemon=True)
            with signals_blocked():  # gdb 18 aborts if a thread other than its first gets a SIGINT
                thread.start()
            try:
                yield
            finally:
                with signals_blocked((signal.SIGINT,)):
                    over.set()
                    os.write(written, b"\0")
                    thread.join()
                    signal.set_wakeup_fd(before)
                    os.close(signals)
                    os.close(written)
        if self._launcher < 0 and self._received:
            number, self._received = self._received, 0
            os.kill(os.getpid(), number)

    def _watch(self, signals: int, over: threading.Event) -> None:
        """Interrupt the main thread for each request, until ``over``. ``signals``: the pipe that gets their numbers."""
        main = threading.main_thread().ident or 0
        sources = [signals] if self._launcher < 0 else [signals, self._launcher]
        requested, due = bool(self._received), 0.0
        while not over.is_set():
            if requested and time.monotonic() >= due:
                due = time.monotonic() + _AGAIN
                signal.pthread_kill(main, signal.SIGINT)
            ready = select.select(sources, [], [], max(0.0, due - time.monotonic()) if requested else None)[0]
            if self._launcher in ready:
                sources.remove(self._launcher)
                requested = True
            if signals in ready and set(os.read(signals, 64)) & {*ENDING_SIGNALS}:
                requested = True

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received = number
