"""Handles the threads that kernel probes stop by a signal, while gdb runs the process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import gdb

from gdbext.engine.targets.live import ptrace
from gdbext.engine.targets.system.linux import signal_name
from gdbext.errors import GdbextError
from gdbext.hosts.gdb.gdb_modes import signal_actions
from gdbext.hosts.gdb.gdb_target import execute, post_whole, quietly

if TYPE_CHECKING:
    from gdbext.tools.probes.thread_stopper import ProbeHooks


@contextmanager
def stopping_for(number: int) -> Iterator[bool]:
    """Have gdb stop for a signal, and restore its table at the end; True if gdb stops for it by the user's own setting.
    Raises TargetError."""
    name = signal_name(number)
    before = signal_actions(name)
    execute(f"handle {name} stop print")
    try:
        yield before[0]
    finally:
        words = (word if wanted else f"no{word}" for word, wanted in zip(("stop", "print", "pass"), before))
        quietly(f"handle {name} {' '.join(words)}")


class ProbedThreads:
    """Handles the threads that kernel probes stop before gdb sees them. A catchpoint would take one of the user's
    numbers and show in an editor's list, and for each stop the editor would read everything anew.

    gdb's main thread is the tracer. Within gdb's event loop it waits for the threads itself, and resumes each as gdb
    does for a signal that nothing is to be done for (linux_nat_filter_event, gdb/linux-nat.c). For those that gdb gets
    first, in the moments in between, it stops.
    """

    _TURN, _PAUSE = 0.2, 0.002
    """Seconds after which gdb has its turn, though the process has no news for it; and between two checks."""
    _BUSY = 10
    """Turns without waiting, once there were news: gdb has more to do for each than one."""

    def __init__(self, hooks: ProbeHooks, handle: Callable[[int], bool], fail: Callable[[BaseException], None]) -> None:
        """``handle`` takes a thread id, raises nothing, and returns whether gdb is to stop the process there; ``fail``
        gets all other errors."""
        self._signal = hooks.signal
        self._hooks = hooks
        self._handle = handle
        self._fail = fail
        self._run: object = None
        self._busy = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Handle the threads of the process, which runs meanwhile. Raises ProbesRefused."""
        reads_running = int(gdb.VERSION.partition(".")[0]) >= 12  # the first that reads a running thread's memory
        # for a watchpoint gdb steps each thread: one that we resume would run away
        is_stepped = any(each.enabled and each.type == gdb.BP_WATCHPOINT for each in gdb.breakpoints())
        if not reads_running or is_stepped:
            self._hooks.arm()
            yield
            return
        if any(word in execute("info program") for word in ("breakpoint", "stepped")):
            self._hooks.arm()  # stopped at a certain place, not by a signal: the next hook must not be missed
        self._run, self._busy = object(), 0
        self._post(self._run)
        try:
            yield
        finally:
            self._run = None

    def _post(self, run: object) -> None:
        post_whole(partial(self._turn, run), partial(self._interrupted, run))

    def _turn(self, run: object) -> None:
        """Called in gdb's event loop, in the run that it belongs to or after it."""
        if run is not self._run:
            return
        try:
            self._hooks.arm()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            try:
                is_over = self._handle_all()
            finally:
                _let_gdb_check()
        except (GdbextError, OSError) as error:
            self._end(error)
            return
        if not is_over:
            self._post(run)

    def _interrupted(self, run: object) -> None:
        """Ctrl+C came in a turn."""
        _let_gdb_check()
        if run is self._run:
            self._end(KeyboardInterrupt())

    def _end(self, error: BaseException) -> None:
        self._fail(error)
        quietly("interrupt")

    def _handle_all(self) -> bool:
        """Handle threads until gdb has something to do; True if that is to stop the process."""
        end, seen = time.monotonic() + self._TURN, set[int]()
        while True:
            for tid in self._hooks.waiting():
                if _pending_stop(tid) == (tid, self._signal):
                    if self._handle(tid):
                        return True
                    with suppress(OSError):
                        os.waitpid(tid, ptrace.WALL)
                        ptrace.resume(tid)
                    seen.discard(tid)
            news = _pending_stop()
            if news and news[1] == self._signal and news[0] not in seen:
                seen.add(news[0])  # it has reached a probe since
                continue
            self._busy = self._BUSY if news else max(self._busy - 1, 0)
            if news or self._busy or time.monotonic() >= end:
                return False
            signal.sigtimedwait({signal.SIGCHLD}, self._PAUSE)


def _pending_stop(tid: int | None = None) -> tuple[int, int] | None:
    """(thread id, signal) of a stop, of that thread or any, which gdb has not seen yet."""
    with suppress(ChildProcessError):
        return ptrace.peek_stop(tid)
    return None


def _let_gdb_check() -> None:
    """Let gdb hear SIGCHLD again, and check its threads at once. Without the signal it would wait for ever."""
    try:
        signal.raise_signal(signal.SIGCHLD)  # it may raise KeyboardInterrupt
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
