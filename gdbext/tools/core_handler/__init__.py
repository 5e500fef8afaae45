"""The tool core-handler: what the kernel calls when a process crashes (core_pattern), to keep a diagnosis, no core.

The kernel starts it as root. Root only opens the dying process's memory and keeps the results; what reads and judges is
a child with the ids of the process's own user, which gets its three outputs as open descriptors.
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
"""The folder in which crashes are kept unless another one is named."""
KEPT, DISK_MB, SECONDS = 100, 512, 10.0
"""Defaults: crashes that are kept, megabytes of them all, seconds for which a crash is held up."""
AT_ONCE, OF_ONE_USER, FOR_FIRST = 16, 12, 4
"""Crashes that are looked at at the same time, those of one user among them, and how many of all places only a user
takes who has none, so that nobody can keep the others' from being looked at; of further ones nothing is kept."""
_USERS_PLACES = 1 << 10
"""The byte of ``.places`` at which the places of users begin."""
_WAY = 0xFFFFFFFE
"""The group that the way to the caches is open to. Nobody has it but who looks at a crash: so nobody else writes to
their own cache, and what lies there is ours."""
_PRIORITY = -10
"""The nice value of a look: a program that crashed stands until it is over, however busy the machine is."""
_GRACE = 0.5
"""Seconds after which a handler that cannot even end its look, as its folder's disk does not answer, ends itself."""
_LARGEST = 32 << 20
"""Most bytes of one file that a look may write."""
_NO_NEW_PRIVS = 38
"""The option PR_SET_NO_NEW_PRIVS of prctl(2) (linux/prctl.h)."""
_KEEP_CAPABILITIES = 8
"""The option PR_SET_KEEPCAPS of prctl(2): a change of the user leaves them, until they are set."""
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

    name = "core-handler"
    summary = "For the kernel's core_pattern: keep a diagnosis and a recording of a crash, no core."

    def arguments(self, parser: ArgumentParser) -> None:
        """Add what the kernel gives, and the limits."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "pid", type=integer, metavar="PID", help="%%P of core_pattern: the process, as this machine counts"
        )
        parser.add_argument(
            "mode", type=integer, nargs="?", default=1, metavar="MODE", help="%%d: its dump mode; 1, or nothing is kept"
        )
        parser.add_argument("--dir", default=FOLDER, metavar="DIR", help=f"where crashes are kept (default {FOLDER})")
        parser.add_argument(
            "--keep", type=integer, default=KEPT, metavar="N", help=f"crashes that are kept (default {KEPT})"
        )
        parser.add_argument(
            "--disk", type=integer, default=DISK_MB, metavar="MB", help=f"megabytes for all of them (default {DISK_MB})"
        )
        parser.add_argument(
            "--seconds",
            type=float,
            default=SECONDS,
            metavar="S",
            help=f"let the process go after that time, whatever is known then (default {SECONDS:g})",
        )

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Look at the process that dies, and keep what was seen. Raises GdbextError."""
        args = self.parse(argv)
        if not 0 < args.seconds <= 600 or args.keep < 1 or args.disk < 1:
            raise UsageError("--seconds takes up to 600; --keep and --disk at least 1")
        deadline = _called_at() + args.seconds
        signal.setitimer(signal.ITIMER_REAL, max(_GRACE, deadline + _GRACE - time.monotonic()))
        folder = Path(args.dir)
        os.close(whole_file.open_folder(str(folder), make=True))
        if not is_ours(str(folder)):
            raise TargetError(f"{folder} can be written by others", help="name another --dir")
        crash = _Crash(args, folder)
        with _Places(folder, crash.user):
            crash.hurry()
            crash.look(dispatch, deadline)
            signal.setitimer(signal.ITIMER_REAL, 0)
            crash.keep()
            make_room(folder, crash.stem, args.keep, args.disk << 20)
        return Outcome(0)


def _called_at() -> float:
    """The moment on the monotonic clock at which the kernel started this process: the crash waits since then."""
    began, now = started_at(os.getpid()), time.time()
    return time.monotonic() - (max(0.0, now - began) if began is not None else 0.0)


class _Places:
    """A place among all crashes and one among those of its user: locked bytes of a file, free when this process has
    gone, however that came. The last ones of all places are for a user's first crash."""

    def __init__(self, folder: Path, user: int) -> None:
        self._path = folder / ".places"
        self._first = _USERS_PLACES + user * OF_ONE_USER
        self._descriptor = -1

    def __enter__(self) -> None:
        """Raises TargetError: there is none."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        own = self._free_of(self._first, OF_ONE_USER)
        most = AT_ONCE - (FOR_FIRST if own else 0)
        if own is None or self._free_of(0, most) is None:
            self.__exit__()
            whose = f"{OF_ONE_USER} crashes of its user" if own is None else f"{most} crashes"
            raise TargetError(f"{whose} are being looked at already")

    def _free_of(self, first: int, count: int) -> int | None:
        """Take the first place of so many that nobody has; None where there is none."""
        return next((place for place in range(count) if _locked(self._descriptor, first + place)), None)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _locked(descriptor: int, place: int) -> bool:
    """Lock a byte of the file, or see that somebody else has it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError:
        return False
    return True


class _Crash:
    """One process that dies, and what is kept of it."""

    def __init__(self, args: Namespace, folder: Path) -> None:
        """Raises TargetError: it is not to be looked at, or has gone."""
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
        """Come before others, where nobody makes crash after crash for that: a user's crashes, ``OF_ONE_USER`` in
        STATE_SECONDS, are looked at before all other work of the machine, as the ranks of a job crash together."""
        last = self._folder / f".last-{self.user}"
        descriptor = os.open(last, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        found, now = os.fstat(descriptor), time.time()
        if not 0 <= now - found.st_mtime < STATE_SECONDS:
            os.ftruncate(descriptor, 0)
        count = os.fstat(descriptor).st_size  # a byte for each
        if count < OF_ONE_USER:
            os.pwrite(descriptor, b"x", count)
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
        os.close(descriptor)

    def look(self, dispatch: Dispatch, deadline: float) -> None:
        """Have a child with the rights of the process's user look; it is killed at the deadline. The process goes when
        the child has read it, for nobody else keeps the kernel's pipe."""
        cache = self._cache()
        child = os.fork()
        if not child:
            self._look(dispatch, deadline, cache)
        os.close(0)
        os.close(self._memory)
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                for end in (os.killpg, os.kill):  # its own children, which keep the pipe, too
                    with contextlib.suppress(ProcessLookupError):
                        end(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self._problem = "the look at it took too long, and was ended"
                return
            time.sleep(0.005)

    def _cache(self) -> str:
        """A folder for the symbol indexes of that uid's programs, which it reaches by the group _WAY only."""
        caches = self._folder / CACHES
        os.close(whole_file.open_folder(str(caches), make=True))
        os.chown(caches, os.geteuid(), _WAY)
        caches.chmod(0o710)
        cache = caches / f"{self.user}-{self._rights.uid}"
        with contextlib.suppress(FileExistsError):
            cache.mkdir(0o700)
            os.chown(cache, self._rights.uid, self._rights.gid)
        return str(cache)

    def _look(self, dispatch: Dispatch, deadline: float, cache: str) -> None:
        """Look in the child, and end it."""
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
        for suffix, descriptor in self._outputs.items():
            data = self._renamed(os.pread(descriptor, _LARGEST, 0), suffix)
            if suffix == "txt" and (self._problem or not data):
                data += f"{self._problem or 'nothing could be said; the .json tells why'}\n".encode()
            if not data:
                continue
            try:
                with whole_file.WholeFile(f"{self._folder}/{self.stem}.{suffix}", whole_file.PRIVATE) as file:
                    os.fchown(file.fd, self._rights.uid, self._rights.gid)
                    file.write(data)
            except OSError as error:
                raise whole_file.cannot_write(f"{self._folder}/{self.stem}.{suffix}", error) from error

    def _renamed(self, data: bytes, suffix: str) -> bytes:
        """A document in which suggestions name the recording as it is kept, not as the child has seen it."""
        if suffix == "rec":
            return data
        kept = f"-r {quoted(f'{self._folder}/{self.stem}.rec')}".encode()
        pipe = f"-c {PIPE}{self._pid}:{self._memory}:0".encode()
        return data.replace(f"-r /proc/self/fd/{self._outputs['rec']}".encode(), kept).replace(pipe, kept)


def _drop(rights: Rights, capabilities: int, deadline: float) -> None:
    """Take on the user's ids for good, with the way to the cache; no capability that the process has not, and limits
    of time and size. Raises OSError."""
    seconds = max(1, int(deadline - time.monotonic()) + 1)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST, _LARGEST))
    os.setgroups([*rights.groups, _WAY])
    libc.prctl(_KEEP_CAPABILITIES, 1)
    os.setresgid(rights.gid, rights.gid, rights.gid)
    os.setresuid(rights.uid, rights.uid, rights.uid)
    libc.limit_capabilities(capabilities & capabilities_of(os.getpid()))
    libc.prctl(_NO_NEW_PRIVS, 1)
    end_with_parent(signal.SIGKILL)  # which a change of ids has taken back
