"""Reads an editor's requests to gdb's DAP server while a command of ours runs the process.

That server handles one request after the other, and would handle none before the command has ended (Server.main_loop of
gdb's package gdb.dap, in gdb 18).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gdbext.hosts.gdb.gdb_target import interrupt_all, post_whole

_CANCELLER, _IN_FLIGHT, _CANCEL = "canceller", "in_flight_gdb_thread", "cancel"
"""The member of gdb's DAP server that cancels requests; there the number of the current request; and the function."""


@contextmanager
def editor_heard() -> Iterator[Callable[[], bool]]:
    """Interrupt the process as soon as an editor wants it stopped, or is gone; the function that it yields returns
    whether that has happened."""
    server = getattr(sys.modules.get("gdb.dap.server"), "_server", None)
    # the queue of requests that the server has read; its name in gdb 18, and before
    name = next((name for name in ("_read_queue", "read_queue") if hasattr(server, name)), "")
    if not name:
        yield lambda: False
        return
    queue, canceller = getattr(server, name), getattr(server, _CANCELLER, None)
    heard = HeardQueue(queue, canceller, lambda: post_whole(interrupt_all, interrupt_all))
    setattr(server, name, heard)
    can_cancel = hasattr(canceller, _IN_FLIGHT)
    if can_cancel:
        setattr(canceller, _CANCEL, heard.cancel)
    try:
        heard.read_waiting()
        yield lambda: heard.is_to_end
    finally:
        if can_cancel:
            delattr(canceller, _CANCEL)
        setattr(server, name, queue)
        heard.end()


class HeardQueue:
    """The queue of requests, which another thread fills and none empties while a command runs.

    A cancel of the command is handled here: gdb.interrupt(), by which gdb 18 cancels, was lost, or had gdb abort, in 3
    of 8 runs of dispatch-values by probes.
    """

    def __init__(self, queue: Any, canceller: Any, interrupt: Callable[[], None]) -> None:
        """``interrupt`` is called from that thread."""
        self._queue = queue
        self._canceller = canceller
        self._interrupt = interrupt
        self._lock = threading.Lock()
        self._is_over = False
        self.is_to_end = False
        """A request has come that is to end the run."""

    def put(self, request: Any) -> None:
        """Add a request, None for the end of all."""
        self._queue.put(request)
        if _ends_run(request):
            self._end_run()

    def get(self) -> Any:
        return self._queue.get()

    def cancel(self, number: int) -> None:
        """Cancel a request: the command that runs, or another one as gdb does."""
        with self._canceller.lock:
            if number != getattr(self._canceller, _IN_FLIGHT):
                getattr(type(self._canceller), _CANCEL)(self._canceller, number)
                return
        self._end_run()

    def _end_run(self) -> None:
        with self._lock:
            if not self.is_to_end and not self._is_over:
                self._interrupt()
            self.is_to_end = True

    def read_waiting(self) -> None:
        """Examine the requests that were there before; they stay in the queue."""
        for _ in range(self._queue.qsize()):
            request = self._queue.get()
            self._queue.put(request)
            self.is_to_end = self.is_to_end or _ends_run(request)

    def end(self) -> None:
        """The process has stopped: nothing is interrupted any more."""
        with self._lock:
            self._is_over = True


def _ends_run(request: Any) -> bool:
    """True for a request that cannot wait until the process stops by itself."""
    commands = ("pause", "disconnect", "terminate")
    return request is None or (isinstance(request, dict) and request.get("command") in commands)
