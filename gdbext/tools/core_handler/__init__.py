"""The tool core-handler: the kernel calls it when a process crashes (core_pattern), and it saves a diagnosis, no core.

The kernel starts it as root. Root only opens the dying process's memory and keeps the results; what reads and judges is
a child with the ids of the process's own user, which gets its three outputs as open fds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gdbext.cache import is_ours
from gdbext.engine import libc, terminal
from gdbext.engine.formats import whole_file
from gdbext.engine.numbers import integer
from gdbext.engine.targets.core_target import PIPE
from gdbext.engine.targets.live.local_process import thread_name
from gdbext.engine.targets.rooted_paths import Rights, capabilities_of, rights_of
from gdbext.engine.targets.system.procfs import started_at
from gdbext.engine.terminal import quoted
from gdbext.errors import TargetError, UsageError
from gdbext.tools.core_handler.crash_user import user_of
from gdbext.tools.core_handler.disk_room import CACHES, STATE_SECONDS, SUFFIXES, crash_stem, make_room
from gdbext.tools.family import end_with_parent
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from gdbext.tools.program import Dispatch

FOLDER = "/var/lib/gdbext"
"""The folder in which crashes are kept (default of --dir)."""
KEPT, DISK_MB, SECONDS = 100, 512, 10.0
"""Defaults: crashes that are kept, megabytes of all of them, seconds for which a crash is held up."""
AT_ONCE, OF_ONE_USER, FOR_FIRST = 16, 12, 4
"""Crashes that are examined at the same time, those of one user among them, and how many places are reserved for users
who have none, so that no user can keep the crashes of others from being examined; of further ones nothing is kept."""
_CACHE_GROUP = 0xFFFFFFFE
"""The group that may enter the folder of caches. Only processes that examine a crash have it: so only they write to
their caches, whose contents can be trusted.
"""
_GRACE = 0.5
"""Seconds after which a handler that cannot even kill its child, since its folder's disk does not answer, exits."""
_LARGEST = 32 << 20
"""Bytes of one file that the child may write, at most."""
_EPILOG = """\
For the kernel, not for people: ./install.sh --core-handler writes to /proc/sys/kernel/core_pattern

  |PATH/scripts/dispatch core-handler %P %d

which calls it for each process that dies of a fatal signal, with the core on standard input. Of the core only the head
is read (the threads' registers); the memory is read in the dying process, which the kernel keeps until this is done.
DIR/crash-NAME-PID-TIME.txt, .json and .rec are kept, about a megabyte, for the process's user only; the oldest crashes
are deleted when there are more than --keep, or more than --disk megabytes. ./install.sh --uninstall restores what was
in core_pattern before.
"""


class CoreHandlerProgram(Program):
    """The program ``scripts/dispatch core-handler`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG
        pid_help = "%%P of core_pattern: the process, as this machine counts"
        parser.add_argument("pid", type=integer, metavar="PID", help=pid_help)
        mode_help = "%%d: its dump mode; 1, or nothing is kept"
        parser.add_argument("mode", type=integer, nargs="?", default=1, metavar="MODE", help=mode_help)
        parser.add_argument("--dir", default=FOLDER, metavar="DIR", help=f"where crashes are kept (default {FOLDER})")
        keep_help = f"crashes that are kept (default {KEPT})"
        parser.add_argument("--keep", type=integer, default=KEPT, metavar="N", help=keep_help)
        disk_help = f"megabytes for all of them (default {DISK_MB})"
        parser.add_argument("--disk", type=integer, default=DISK_MB, metavar="MB", help=disk_help)
        seconds_help = f"let the process go after that time, whatever is known then (default {SECONDS:g})"
        parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=seconds_help)

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Examine the process that dies, and keep the results. Raises GdbextError."""
        args = self.parse(argv)
        if not 0 < args.seconds <= 600 or args.keep < 1 or args.disk < 1:
            raise UsageError("--seconds takes up to 600; --keep and --disk at least 1")
        started, now = started_at(os.getpid()), time.time()  # the crash waits since the kernel started this process
        deadline = time.monotonic() - (max(0.0, now - started) if started is not None else 0.0) + args.seconds
        signal.setitimer(signal.ITIMER_REAL, max(_GRACE, deadline + _GRACE - time.monotonic()))
        folder = Path(args.dir)
        os.close(whole_file.open_folder(str(folder), make=True))
        if not is_ours(str(folder)):
            raise TargetError(f"{folder} can be written by others", help="name another --dir")
        crash = _Crash(args, folder)
        with _Places(folder, crash.user):
            crash.hurry()
            crash.examine(dispatch, deadline)
            signal.setitimer(signal.ITIMER_REAL, 0)
            crash.keep()
            make_room(folder, crash.stem, args.keep, args.disk << 20)
        return Outcome(0)


class _Places:
    """A place among all crashes and one among those of its user: locked bytes of a file, which the kernel unlocks when
    this process exits, however that happens. The last places of all are for a user's first crash."""

    def __init__(self, folder: Path, user: int) -> None:
        self._path = folder / ".places"
        self._first = (1 << 10) + user * OF_ONE_USER
        self._fd = -1

    def __enter__(self) -> None:
        """Raises TargetError if no place is free."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        own = self._take_free(self._first, OF_ONE_USER)
        most = AT_ONCE - (FOR_FIRST if own else 0)
        if own is None or self._take_free(0, most) is None:
            self.__exit__()
            whose = f"{OF_ONE_USER} crashes of its user" if own is None else f"{most} crashes"
            raise TargetError(f"{whose} are being looked at already")

    def _take_free(self, first: int, count: int) -> int | None:
        """Lock the first free byte of ``count`` from ``first``; its number among them, None if none is free."""
        for place in range(count):
            with contextlib.suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, first + place)
                return place
        return None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class _Crash:
    """A process that dies, and what is kept of it."""

    def __init__(self, args: Namespace, folder: Path) -> None:
        """Raises TargetError if it must not be examined, or is gone."""
        self._pid: int = args.pid
        self._folder = folder
        if args.mode != 1:
            raise TargetError(
                f"process {self._pid} changed its rights while it ran: nothing of it is kept",
                why="its memory may hold what its user must not see (prctl(2), PR_SET_DUMPABLE)",
            )
        try:
            self._rights = rights_of(self._pid)
            self._capabilities = capabilities_of(self._pid)
            self.user = user_of(self._pid, self._rights.uid)
            self._memory = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TargetError(f"process {self._pid} cannot be read: {error.strerror}") from error
        name = re.sub(r"[^\w.-]+", "_", thread_name(self._pid, self._pid) or "process")
        self.stem = crash_stem(name, self._pid, self._rights.uid, self.user)
        self._outputs = {suffix: os.memfd_create(f"gdbext-{suffix}", 0) for suffix in SUFFIXES}
        self._problem = ""

    def hurry(self) -> None:
        """Take precedence over all other work of the machine for a user's first ``OF_ONE_USER`` crashes in
        STATE_SECONDS: as many as the ranks of a job make at once, but not for a user who makes crash after crash."""
        last = self._folder / f".last-{self.user}"
        fd = os.open(last, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not 0 <= time.time() - os.fstat(fd).st_mtime < STATE_SECONDS:
            os.ftruncate(fd, 0)
        count = os.fstat(fd).st_size  # a byte for each
        if count < OF_ONE_USER:
            os.pwrite(fd, b"x", count)
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, -10)  # the crashed program waits until this is done
        os.close(fd)

    def examine(self, dispatch: Dispatch, deadline: float) -> None:
        """Diagnose in a child with the rights of the process's user, which is killed at the deadline. The process exits
        when the child has read it, for only the child keeps the kernel's pipe."""
        cache = self._cache()
        child = os.fork()
        if not child:
            self._diagnose(dispatch, deadline, cache)
        os.close(0)
        os.close(self._memory)
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                for kill in (os.killpg, os.kill):  # its own children, which keep the pipe, too
                    with contextlib.suppress(ProcessLookupError):
                        kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self._problem = "the look at it took too long, and was ended"
                return
            time.sleep(0.005)

    def _cache(self) -> str:
        """A folder for the symbol indexes of that uid's programs, which it can enter only by the group _CACHE_GROUP."""
        caches = self._folder / CACHES
        os.close(whole_file.open_folder(str(caches), make=True))
        os.chown(caches, os.geteuid(), _CACHE_GROUP)
        caches.chmod(0o710)
        cache = caches / f"{self.user}-{self._rights.uid}"
        with contextlib.suppress(FileExistsError):
            cache.mkdir(0o700)
            os.chown(cache, self._rights.uid, self._rights.gid)
        return str(cache)

    def _diagnose(self, dispatch: Dispatch, deadline: float, cache: str) -> None:
        """Diagnose in the child, and exit."""
        status = 1
        try:
            end_with_parent(signal.SIGKILL)
            os.setpgid(0, 0)
            _drop(self._rights, self._capabilities, deadline)
            os.environ["XDG_CACHE_HOME"] = cache
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            source = f"{PIPE}{self._pid}:{self._memory}:0"
            recording = f"/proc/self/fd/{self._outputs['rec']}"
            os.dup2(self._outputs["json"], 1)
            seconds = f"{max(0.1, deadline - time.monotonic()):.1f}"
            words = ["-c", source, "--record", recording, "--timeout", seconds, "--json", "dispatch-diagnose"]
            status = dispatch(words)
            os.close(0)  # lets the process go
            os.dup2(self._outputs["txt"], 1)
            if status == 0:
                dispatch(["-r", recording, "dispatch-diagnose"])
        except Exception as error:
            terminal.write(self._outputs["txt"], f"the look at it failed: {error!r}\n")
        finally:
            os._exit(status)

    def keep(self) -> None:
        """Write what the child has left to the folder, for the process's user only. Raises TargetError."""
        # Suggestions name the recording as it is kept, not as the child has seen it.
        kept = f"-r {quoted(f'{self._folder}/{self.stem}.rec')}".encode()
        recording = f"-r /proc/self/fd/{self._outputs['rec']}".encode()
        pipe = f"-c {PIPE}{self._pid}:{self._memory}:0".encode()
        for suffix, fd in self._outputs.items():
            data = os.pread(fd, _LARGEST, 0)
            if suffix != "rec":
                data = data.replace(recording, kept).replace(pipe, kept)
            if suffix == "txt" and (self._problem or not data):
                data += f"{self._problem or 'nothing could be said; the .json tells why'}\n".encode()
            if not data:
                continue
            path = f"{self._folder}/{self.stem}.{suffix}"
            try:
                with whole_file.WholeFile(path, whole_file.PRIVATE) as file:
                    os.fchown(file.fd, self._rights.uid, self._rights.gid)
                    file.write(data)
            except OSError as error:
                raise whole_file.cannot_write(path, error) from error


def _drop(rights: Rights, capabilities: int, deadline: float) -> None:
    """Take on the user's ids for good, with access to the cache; keep only capabilities that the process has, and limit
    time and size. Raises OSError."""
    seconds = max(1, int(deadline - time.monotonic()) + 1)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST, _LARGEST))
    os.setgroups([*rights.groups, _CACHE_GROUP])
    libc.prctl(8, 1)  # PR_SET_KEEPCAPS (linux/prctl.h): a change of the user leaves them, until they are set
    os.setresgid(rights.gid, rights.gid, rights.gid)
    os.setresuid(rights.uid, rights.uid, rights.uid)
    libc.limit_capabilities(capabilities & capabilities_of(os.getpid()))
    libc.prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    end_with_parent(signal.SIGKILL)  # which a change of ids has cancelled
