"""A debugger of our own, as a process: its descriptors, its result, and its end."""

from __future__ import annotations

import os
import select
import time

from gdbext.errors import TargetError
from gdbext.log import logger
from gdbext.targets.live.proc_checks import thread_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_log = logger(__name__)

SIGINT, SIGKILL, SIGTERM, SIGCONT = 2, 9, 15, 18

GRACE_SECONDS = 3.0
"""How long the debugger gets to detach after SIGTERM before it is killed."""

STOP_SECONDS = 0.3
"""How long the SIGSTOP of a debugger that was ended may take to reach its process."""


class DebuggerProcess:
    """Its standard output is kept apart from ours; the result comes through a pipe."""

    def __init__(
        self,
        name: str,
        words: list[str],
        environment: Callable[[], dict[str, str]],
        result: int,
        pid: int | None,
        starts_program: bool,
        live: bool,
    ) -> None:
        """Start it. ``result`` is the pipe that the outcome comes through, ``pid`` the process to attach to.

        A debugger that starts a program gets our environment and terminal, any other one ``environment``. With ``live``
        the command resumes the process. Raises TargetError.
        """
        self._name = name
        self._attached_to = pid
        self._stopped_before = _is_stopped(pid)
        self._program = starts_program
        self._live = live
        self._may_change_it = starts_program or live
        self._printed = os.memfd_create(name, os.MFD_CLOEXEC)
        self._result = result
        self._pid = self._spawn(words, environment)
        self._status: int | None = None

    def _spawn(self, words: list[str], environment: Callable[[], dict[str, str]]) -> int:
        _log.debug("start %s", words)
        try:
            if self._program:
                return os.posix_spawn(words[0], words, os.environ, file_actions=self._files())
            # not in our process group: Ctrl+C is for us, and we pass it on
            return os.posix_spawn(words[0], words, environment(), file_actions=self._files(), setpgroup=0)
        except OSError as error:
            raise TargetError(
                f"{self._name} cannot be started ({words[0]}): {error.strerror}",
                why="the file is not a program of this machine, or the command line is too long",
                help=f"name another {self._name} in ${self._name.upper()}, or use --debugger none, which needs no "
                "debugger at all",
            ) from error

    def _files(self) -> list[Any]:
        """A started program gets our terminal, with standard error in place of standard output."""
        if self._program:
            return [(os.POSIX_SPAWN_DUP2, 2, 1)]
        return [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, self._printed, 1),
            (os.POSIX_SPAWN_DUP2, self._printed, 2),
        ]

    def result(self, timeout: float | None) -> bytes:
        """All that came through the pipe until the debugger ended. Raises TargetError when the time is up."""
        from gdbext.cli.options import timeout_error

        deadline = None if timeout is None else time.monotonic() + timeout
        parts = []
        interrupted = False
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                ready = select.select([self._result], [], [], left)[0]
            except KeyboardInterrupt:
                if not self._live or interrupted:
                    raise
                interrupted = True  # that ends what the live command does; its report follows
                os.kill(self._pid, SIGINT)
                continue
            if not ready:
                if self._may_change_it and deadline is not None:
                    deadline = None
                    os.kill(self._pid, SIGINT)
                    continue
                raise timeout_error(timeout or 0)
            part = os.read(self._result, 1 << 20)
            if not part:
                break
            parts.append(part)
        self._reap(GRACE_SECONDS)
        _log.debug("%s %s", self._name, self.how_it_ended())
        return b"".join(parts)

    def end(self) -> None:
        """End the debugger, so that the process goes on; with it the helper that gdb forks while it attaches.

        SIGKILL is the gentle way here: the kernel lets all threads go and nothing was changed in the process. Asked
        to end (SIGTERM, SIGINT) in the middle of attaching, gdb 13 kills the process. Only commands that set
        breakpoints need the debugger's own way out. A second Ctrl+C must not end us before the process goes on.
        """
        import signal

        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        for number in (SIGTERM, SIGKILL) if self._may_change_it else (SIGKILL,):
            if self._status is None:
                _log.info("%s gets signal %d", self._name, number)
                os.kill(self._pid if self._program else -self._pid, number)
                self._reap(GRACE_SECONDS)
        self._resume()

    def printed(self) -> str:
        """What the debugger printed."""
        size = os.lseek(self._printed, 0, os.SEEK_END)
        return os.pread(self._printed, min(size, 1 << 16), 0).decode(errors="replace")

    def how_it_ended(self) -> str:
        """Its exit, in words."""
        if self._status is None:
            return "does not end"
        if os.WIFSIGNALED(self._status):
            return f"was killed by signal {os.WTERMSIG(self._status)}"
        return f"ended with status {os.WEXITSTATUS(self._status)}"

    def _reap(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while self._status is None:
            found, status = os.waitpid(self._pid, os.WNOHANG)
            if found:
                self._status = status
            elif time.monotonic() > deadline:
                return
            else:
                time.sleep(pause)
                pause = min(pause * 2, 0.05)

    def _resume(self) -> None:
        """A debugger that ended while it attached leaves a SIGSTOP behind. Undo that, and only that."""
        pid = self._attached_to
        if pid is None or self._stopped_before:
            return
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            if _is_stopped(pid):
                _log.info("process %d was left stopped, and gets SIGCONT", pid)
                try:
                    os.kill(pid, SIGCONT)
                except OSError:  # it has just ended
                    return
                return
            time.sleep(0.01)


def _is_stopped(pid: int | None) -> bool:
    """Some thread is stopped by a signal (state T)."""
    if pid is None:
        return False
    try:
        return "T" in thread_states(pid).values()
    except OSError:
        return False
