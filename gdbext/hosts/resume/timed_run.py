"""Lets a process run for some seconds inside a user's debugger, by the debugger's own ``continue``.

Detaching and attaching again would do as well, and did; but an editor ends its session when its process is detached
from, and a program that the debugger started cannot be attached to again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.report import Ending, EndingKind
from gdbext.diagnosis.tool import run_for
from gdbext.errors import TargetError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from gdbext.diagnosis.samples import Watch


class TimedRun:
    """A context manager around what lets the process run and returns when it has stopped: after so many seconds another
    thread calls ``stop``."""

    def __init__(self, seconds: float, watch: Watch, stop: Callable[[], None]) -> None:
        """``watch`` is called while the process runs, as ``run_for`` does. ``stop`` must do nothing once ``is_running``
        is false: the process may have stopped by itself."""
        self._seconds = seconds
        self._watch = watch
        self._stop = stop
        self._cancelled = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self.is_over = False
        """True when the seconds have passed."""
        self.is_running = False
        """The process has not been seen to stop."""

    def __enter__(self) -> TimedRun:
        self.is_running = True
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_running = False
        self._cancelled.set()
        self._thread.join()

    def check(self, ending: Ending, alternative: str) -> None:
        """Raise what else ended the run: KeyboardInterrupt, TargetGone, TargetError whose help is ``alternative``."""
        if self._error is not None:
            raise self._error
        if ending.kind is EndingKind.INTERRUPTED:
            if not self.is_over:
                raise KeyboardInterrupt
            return
        if ending.error is not None:
            raise ending.error
        if ending.kind.leaves_process:
            raise TargetError(
                f"{ending.text} stopped the process before the next look",
                why="--samples lets the process run between its looks",
                help=f"disable what stops it, or {alternative}",
            )
        raise TargetGone(ending.text)

    def _wait(self) -> None:
        try:
            run_for(self._seconds, self._watch, self._sleep)
        except _CancelledError:
            return
        except BaseException as error:
            self._error = error
        self.is_over = True
        self._stop()

    def _sleep(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise _CancelledError


class _CancelledError(Exception):
    """The process has stopped before its time."""
