"""Runs of the process that end after a time, on Ctrl+C or with the process itself, and a notice on silent ones.

Inside a user's debugger the process runs by the debugger's own ``continue``, while another thread of ours works: it
waits some seconds, or reads the records of kernel probes, and has the process stopped when it is done. Detaching and
attaching again does not work: an editor ends its session when its process is detached from, and a program that the
debugger started cannot be attached to again.
"""

from __future__ import annotations

import signal
import threading
import time
from abc import abstractmethod
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.engine.targets.live.local_process import read_file
from gdbext.engine.targets.live.thread_motion import activities
from gdbext.engine.targets.system.linux import ENDING_SIGNALS, has_exited, signals_blocked, signals_handled
from gdbext.errors import GdbextError, TargetError, TargetGone
from gdbext.render import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import TypeVar

    Run = TypeVar("Run", bound="_BesideRun")
    Work = Callable[["TimedRun"], None]


class _BesideRun:
    """A context manager around a call that resumes the process: another thread of ours works meanwhile."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work_beside, daemon=True)

    def __enter__(self: Run) -> Run:
        with signals_blocked():  # gdb 18 aborts where another thread than its first gets a SIGINT
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @abstractmethod
    def _work_beside(self) -> None:
        """The work of the thread, which must end when ``_over`` is set: the process has stopped."""


class TimedRun(_BesideRun):
    """A run of the process that ends when ``work`` in another thread is done, unless it ends earlier."""

    def __init__(self, work: Work, stop: Callable[[], None]) -> None:
        """``stop`` stops the process. It must do nothing once ``is_running`` is false: the process may have stopped by
        itself."""
        super().__init__()
        self._work = work
        self._stop = stop
        self._error: BaseException | None = None
        self._is_done = False

    @property
    def is_running(self) -> bool:
        """True as long as the process has not been seen to stop."""
        return not self.came

    @property
    def came(self) -> bool:
        """True if the process has stopped, by itself or by the user: the work must end."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait that long, or until the process has stopped; True if it has."""
        return self._over.wait(seconds)

    def sleep(self, seconds: float) -> None:
        """Sleep inside the work; ends the work if the process has stopped."""
        if self.wait(seconds):
            raise _CancelledError

    def ending(self, ending: Ending) -> Ending:
        """The reason why the run ended: ASKED if the work was done, else ``ending``. Raises what the work raised."""
        if self._error:
            raise self._error
        return Ending(EndingKind.ASKED, "") if self._is_done and ending.kind is EndingKind.INTERRUPTED else ending

    def _work_beside(self) -> None:
        """Do the work; stop the process afterwards, also if the work has failed."""
        try:
            self._work(self)
        except _CancelledError:
            return
        except BaseException as error:
            self._error = error
        if not self.came:
            self._is_done = True
            self._stop()


class _CancelledError(Exception):
    """The process has stopped before the work was done."""


SILENT_AFTER = 5.0
"""Seconds without anything to show after which the notice is shown."""
_SETTLED = 1.0
"""Seconds until each thread has run that only runs because it was resumed."""


class SilenceNotice(_BesideRun):
    """A run of the process that, after some seconds without anything to show, shows once what the process does instead,
    by the kernel's counters of its threads."""

    def __init__(
        self, pid: int, what: str, instead: str, has_come: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        """``pid``: 0 for a process of another machine. ``what``: the awaited event ("dispatch"), for which ``has_come``
        asks; ``instead``: what threads that ran did ("none reached it"); ``say`` shows a text."""
        super().__init__()
        self._pid = pid
        self._what = what
        self._instead = instead
        self._has_come = has_come
        self._say = say
        self.text = ""  # the notice, once it was shown

    def _work_beside(self) -> None:
        """Compare the threads' counters after SILENT_AFTER seconds, and show the notice."""
        if self._over.wait(_SETTLED):
            return
        before = activities(self._pid) if self._pid else {}
        if self._over.wait(SILENT_AFTER - _SETTLED) or self._has_come():
            return
        after = activities(self._pid) if self._pid else {}
        ran = sum(activity != before.get(tid, activity) for tid, activity in after.items())
        self.text = f"no {self._what} in {SILENT_AFTER:.0f} s"
        threads = counted(len(after), "thread")
        if ran:
            self.text += f": {ran} of {threads} ran, and {self._instead}"
        elif after:
            self.text += f": none of {threads} ran: it waits, dispatch-diagnose says for what"
        with suppress(OSError):
            self._say(self.text)


def check_pause(ending: Ending, alternative: str) -> None:
    """Check that the pause between two samples ended because its time was over. Raises KeyboardInterrupt, TargetGone,
    or TargetError, whose help ends with ``alternative``."""
    if ending.kind is EndingKind.ASKED:
        return
    if ending.kind is EndingKind.INTERRUPTED:
        raise KeyboardInterrupt
    if ending.error:
        raise ending.error
    if ending.kind.leaves_process:
        raise TargetError(
            f"{ending.text} stopped the process before the next sample",
            why="--samples lets the process run between samples",
            help=f"disable what stops it, or {alternative}",
        )
    raise TargetGone(ending.text)


def ending_of_failure(error: BaseException, debugger: str = "") -> Ending:
    """The ending of a run for an error that a hook of ours, the output, or the ``debugger`` raised."""
    if isinstance(error, KeyboardInterrupt):
        return Ending(EndingKind.INTERRUPTED, "interrupted")
    if isinstance(error, OSError):
        what = f"the trace cannot be written: {error.strerror or error}"
        error = TargetError(what, help="make room, or name another --output")
    if isinstance(error, GdbextError):
        return Ending(EndingKind.FAILED, error.what, error=error)
    return Ending(EndingKind.FAILED, str(error), error=TargetError(f"{debugger}: {error}"))


class DeferredInterrupt:
    """A context manager: the first signal to interrupt or end only sets ``came``. A second Ctrl+C raises
    KeyboardInterrupt, unless it belongs to the first: ``timeout -s INT`` sends one to its child, and one to the child's
    group."""

    def __init__(self, is_heard: bool = True) -> None:
        """``is_heard`` False: handle no signals; they belong to the debugger in which this runs."""
        self.came = False
        self._since = 0.0
        self._is_heard = is_heard
        self._handled = ExitStack()

    def __enter__(self) -> DeferredInterrupt:
        if self._is_heard and threading.current_thread() is threading.main_thread():
            self._handled.enter_context(signals_handled((signal.SIGINT, signal.SIGALRM, *ENDING_SIGNALS), self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._handled.close()

    def sleep(self, seconds: float) -> bool:
        """Sleep until that time is over or a signal has arrived; True if the time is over."""
        until = time.monotonic() + seconds
        while not self.came and time.monotonic() < until:
            time.sleep(min(0.05, max(0.0, until - time.monotonic())))
        return not self.came

    def _note(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        if self.came and number == signal.SIGINT and time.monotonic() - self._since > 1.0:  # not the same request
            raise KeyboardInterrupt
        if not self.came:
            self._since = time.monotonic()
        self.came = True


class WatchedProcess:
    """Watches a process for its end, by /proc only."""

    def __init__(self, pid: int) -> None:
        """Open the process. Raises TargetGone."""
        self._pid = pid
        self._start = read_file(pid, "auxv")

    def ending(self) -> Ending | None:
        """The way in which the process ended; None while it exists."""
        try:
            stat, auxv = read_file(self._pid, "stat"), read_file(self._pid, "auxv")
        except TargetGone:
            stat = auxv = b""
        if not auxv or has_exited(stat):
            return Ending(EndingKind.GONE, "the process ended")
        if auxv != self._start:  # random bytes are at another address after each exec
            return Ending(EndingKind.REPLACED, "the process replaced itself by another program (exec)")
        return None
