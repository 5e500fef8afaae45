"""The last seconds of a trace, kept while a process is watched and written down when it hangs.

The trace is a process of its own (``dispatch-trace --last``), which reads the kernel's ring and drops what is too old.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING

from gdbext.cli.evidence import errors_in, start_aside
from gdbext.errors import TargetError

if TYPE_CHECKING:
    from gdbext.cli.evidence import Dispatch

ENDING = "trace.html"
_ATTEMPTS = 3
"""How often it is started anew: torch may be just about to be loaded, and a program may replace itself by another."""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG (linux/prctl.h)."""
_ENDINGS = ((signal.SIGINT, 20.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
"""How a trace is ended, and how many seconds it has to write its page: the watch must not hang with it."""


class KeptTrace:
    """A trace of process ``pid``; nothing is started before the first keep()."""

    def __init__(self, pid: int, seconds: float, folder: str, dispatch: Dispatch) -> None:
        """``dispatch`` is scripts/dispatch."""
        self._page = f"{folder}/.trace-{pid}.html"
        self._report = f"{folder}/.trace-{pid}.json"
        self._words = ["-p", str(pid), "dispatch-trace", "--all", "--engine", "probes", "--last", f"{seconds:g}"]
        self._words += ["--output", self._page, "--json"]
        self._dispatch = dispatch
        self._child: int | None = None
        self._left = _ATTEMPTS

    def keep(self) -> None:
        """Let it run, if it does not. Raises TargetError: it cannot."""
        if self._child is not None and os.waitpid(self._child, os.WNOHANG)[0]:
            self._child = None
            if not self._left:
                raise TargetError(f"no trace is kept: {self._wrong()}")
        if self._child is None and self._left:
            self._left -= 1
            self._child = start_aside(self._dispatch, self._words, self._report, _end_with_us)

    def take(self, start: str) -> str:
        """End it, and keep what it has as the file whose path begins with ``start``; the ending of that. Raises
        TargetError."""
        status = self._stop()
        self._left = _ATTEMPTS
        try:
            if status:
                raise TargetError(f"no trace was kept: {self._wrong()}")
            os.replace(self._page, f"{start}.{ENDING}")  # noqa: PTH105
        except OSError as error:
            raise TargetError(f"no trace was kept: {error.strerror}") from error
        return ENDING

    def end(self) -> None:
        """Nobody wants it any more."""
        self._stop()
        for path in (self._page, self._report):
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108

    def _stop(self) -> int:
        """Its exit status; as if it had failed where it did not run."""
        if self._child is None:
            return 1
        child, self._child = self._child, None
        for number, patience in _ENDINGS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
            status = _ended(child, patience)
            if status is not None:
                return status
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _wrong(self) -> str:
        """What the trace's own report says of it."""
        try:
            with open(self._report) as file:
                return errors_in(json.load(file)["errors"]) or "it ended"
        except (OSError, ValueError, LookupError, TypeError):
            return "it had not begun"


def _end_with_us() -> None:
    """In the trace's process: it ends when we do, and heeds SIGINT."""
    import ctypes

    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _ended(child: int, patience: float) -> int | None:
    """The exit status of a child that ends within so many seconds, None of one that does not."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None
