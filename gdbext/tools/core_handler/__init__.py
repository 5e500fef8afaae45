"""The tool core-handler: a core_pattern handler that saves a diagnosis instead of a core.

The kernel starts it as root. Root only opens the dying process's memory and saves the results; a child with the ids of
the process's user reads and diagnoses, and gets its three outputs as open fds.

Users cannot displace each other's crashes: if there is no more room, the user with the most loses the oldest. The files
belong to their users, who may change them, so time, order and user of a crash are taken from its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import resource
import shutil
import signal
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cache import is_ours
from gdbext.engine import libc, terminal
from gdbext.engine.formats import whole_file
from gdbext.engine.numbers import integer
from gdbext.engine.targets.core_target import PIPE
from gdbext.engine.targets.live.local_process import thread_name
from gdbext.engine.targets.rooted_paths import Rights, capabilities_of, rights_of
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.procfs import started_at
from gdbext.engine.terminal import quoted
from gdbext.errors import TargetError, UsageError
from gdbext.tools.family import end_with_parent
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.tools.program import Dispatch

FOLDER = "/var/lib/gdbext"
"""The folder in which crashes are kept (default of --dir)."""
KEPT, DISK_MB, SECONDS = 100, 512, 10.0
"""Defaults: crashes that are kept, megabytes of all of them, seconds for which a crash is held up."""
AT_ONCE, OF_ONE_USER, FOR_FIRST = 16, 12, 4
"""Most crashes that are examined at the same time, of all users and of one user, and how many of them are reserved for
users without any, so that no user can prevent the examination of another user's crashes; further ones are dropped."""
_USERS_PLACES = 1 << 10
"""Offset in the lock file from which each user has OF_ONE_USER bytes, by uid."""
_CACHE_GROUP = 0xFFFFFFFE
"""The group that may enter the folder of caches. Only processes that examine a crash have it, so the caches' contents
can be trusted."""
_GRACE = 0.5
"""Seconds after the deadline at which the handler is killed if it cannot exit, because its folder's disk hangs."""
_LARGEST = 32 << 20
"""Most bytes of one file that the child may write."""
_EPILOG = """\
The kernel runs this command. ./install.sh --core-handler writes this line to /proc/sys/kernel/core_pattern:

  |PATH/scripts/dispatch core-handler %P %d

The kernel then runs it for each process that is killed by a signal that dumps core, with the core on standard input.
The command reads only the beginning of the core, which has the threads' registers. It reads the memory from the dying
process, which the kernel keeps until the command exits. It writes DIR/crash-NAME-PID-TIME.txt, .json and .rec, about a
megabyte, readable only by the process's user. It deletes the oldest crashes if there are more than --keep, or if they
take more than --disk megabytes. ./install.sh --uninstall restores the previous core_pattern.
"""


class CoreHandlerProgram(Program):
    """The program ``scripts/dispatch core-handler`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog, add = _EPILOG, parser.add_argument
        add("pid", type=integer, metavar="PID", help="%%P of core_pattern: the process ID in the initial PID namespace")
        mode_help = "%%d of core_pattern: the dump mode; nothing is saved unless it is 1"
        add("mode", type=integer, nargs="?", default=1, metavar="MODE", help=mode_help)
        add("--dir", default=FOLDER, metavar="DIR", help=f"folder for the crashes (default: {FOLDER})")
        add("--keep", type=integer, default=KEPT, metavar="N", help=f"number of crashes to keep (default: {KEPT})")
        disk_help = f"megabytes that all crashes may take (default: {DISK_MB})"
        add("--disk", type=integer, default=DISK_MB, metavar="MB", help=disk_help)
        seconds_help = f"let the process exit after S seconds, even if the diagnosis is not done (default: {SECONDS:g})"
        add("--seconds", type=float, default=SECONDS, metavar="S", help=seconds_help)

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Examine the dying process, and keep the results. Raises GdbextError."""
        args = self.parse(argv)
        if not 0 < args.seconds <= 600 or args.keep < 1 or args.disk < 1:
            raise UsageError("--seconds takes up to 600; --keep and --disk at least 1")
        started, now = started_at(os.getpid()), time.time()  # the crash waits since the kernel started this process
        deadline = time.monotonic() - (max(0.0, now - started) if started is not None else 0.0) + args.seconds
        signal.setitimer(signal.ITIMER_REAL, max(_GRACE, deadline + _GRACE - time.monotonic()))
        folder = Path(args.dir)
        os.close(whole_file.open_folder(str(folder), make=True))
        if not is_ours(str(folder)):
            raise TargetError(f"{folder} can be written to by other users", help="choose another --dir")
        crash = _Crash(args, folder)
        with _Places(folder, crash.user):
            crash.raise_priority()
            crash.examine(dispatch, deadline)
            signal.setitimer(signal.ITIMER_REAL, 0)
            crash.keep()
            make_room(folder, crash.stem, args.keep, args.disk << 20)
        return Outcome(0)


class _Places:
    """A context manager that limits how many crashes are examined at the same time. It locks one byte of a file for all
    crashes, and one for those of its user; the kernel unlocks them when this process exits."""

    def __init__(self, folder: Path, user: int) -> None:
        """``user``: the uid that the crash counts for."""
        self._path = folder / ".places"
        self._user = user
        self._fd = -1

    def __enter__(self) -> None:
        """Lock both bytes. Raises TargetError if none is free."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        user_place = self._lock_free_byte(_USERS_PLACES + self._user * OF_ONE_USER, OF_ONE_USER)
        limit = AT_ONCE - (FOR_FIRST if user_place else 0)
        if user_place is None or self._lock_free_byte(0, limit) is None:
            self.__exit__()
            what = f"{OF_ONE_USER} crashes of its user" if user_place is None else f"{limit} crashes"
            raise TargetError(f"{what} are already being examined")

    def _lock_free_byte(self, first: int, count: int) -> int | None:
        """Lock the first free byte of the ``count`` bytes at offset ``first``; its number from 0, None if all are
        locked."""
        for number in range(count):
            with contextlib.suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, first + number)
                return number
        return None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class _Crash:
    """A dying process, and the results that are kept."""

    def __init__(self, args: Namespace, folder: Path) -> None:
        """Raises TargetError if the process must not be examined, or no longer exists."""
        self._pid: int = args.pid
        self._folder = folder
        if args.mode != 1:
            raise TargetError(
                f"process {self._pid} changed its privileges while it ran: nothing is saved",
                why="its memory may contain data that its user must not see (prctl(2), PR_SET_DUMPABLE)",
            )
        try:
            self._rights = rights_of(self._pid)
            self._capabilities = capabilities_of(self._pid)
            self.user = user_of(self._pid, self._rights.uid)
            self._memory = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TargetError(f"process {self._pid} cannot be read: {error.strerror}") from error
        name = re.sub(r"[^\w.-]+", "_", thread_name(self._pid, self._pid) or "process")
        borrower = f".{self.user}" if self.user != self._rights.uid else ""  # else the files' owner is the user
        self.stem = f"crash-{name}-{self._pid}{borrower}-{time.strftime(_TIME)}"
        self._outputs = {suffix: os.memfd_create(f"gdbext-{suffix}", 0) for suffix in SUFFIXES}
        self._problem = ""

    def raise_priority(self) -> None:
        """Raise our priority for a user's first OF_ONE_USER crashes in STATE_SECONDS, as the ranks of a job cause them
        at once, but not for a user who causes crash after crash."""
        fd = os.open(self._folder / f".last-{self.user}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not 0 <= time.time() - os.fstat(fd).st_mtime < STATE_SECONDS:
            os.ftruncate(fd, 0)
        count = os.fstat(fd).st_size  # a byte for each
        if count < OF_ONE_USER:
            os.pwrite(fd, b"x", count)
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, -10)  # the crashed program waits until this is done
        os.close(fd)

    def examine(self, dispatch: Dispatch, deadline: float) -> None:
        """Diagnose in a child with the rights of the process's user, and kill the child at the deadline
        (time.monotonic()). The crashed process exits when the child closes the kernel's pipe."""
        cache = self._cache_folder()
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
                self._problem = "the diagnosis took too long and was stopped"
                return
            time.sleep(0.005)

    def _cache_folder(self) -> str:
        """Path of the folder for the symbol indexes of that uid's programs, which only the group _CACHE_GROUP can
        enter."""
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
        """Diagnose in the child, and exit. ``cache``: path of its cache folder."""
        status = 1
        try:
            end_with_parent(signal.SIGKILL)
            os.setpgid(0, 0)
            _drop_rights(self._rights, self._capabilities, deadline)
            os.environ["XDG_CACHE_HOME"] = cache
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            source = f"{PIPE}{self._pid}:{self._memory}:0"
            recording = f"/proc/self/fd/{self._outputs['rec']}"
            os.dup2(self._outputs["json"], 1)
            seconds = f"{max(0.1, deadline - time.monotonic()):.1f}"
            words = ["-c", source, "--record", recording, "--timeout", seconds, "--json", "dispatch-diagnose"]
            status = dispatch(words)
            os.close(0)  # the crashed process exits now
            os.dup2(self._outputs["txt"], 1)
            if status == 0:
                dispatch(["-r", recording, "dispatch-diagnose"])
        except Exception as error:
            terminal.write(self._outputs["txt"], f"the diagnosis failed: {error!r}\n")
        finally:
            os._exit(status)

    def keep(self) -> None:
        """Write the child's outputs to the folder, for the process's user only. Raises TargetError."""
        # Suggestions must name the recording in the folder, not the child's fd.
        kept = f"-r {quoted(f'{self._folder}/{self.stem}.rec')}".encode()
        recording = f"-r /proc/self/fd/{self._outputs['rec']}".encode()
        pipe = f"-c {PIPE}{self._pid}:{self._memory}:0".encode()
        for suffix, fd in self._outputs.items():
            data = os.pread(fd, _LARGEST, 0)
            if suffix != "rec":
                data = data.replace(recording, kept).replace(pipe, kept)
            if suffix == "txt" and (self._problem or not data):
                data += f"{self._problem or 'no diagnosis could be made; the .json file says why'}\n".encode()
            if not data:
                continue
            path = f"{self._folder}/{self.stem}.{suffix}"
            try:
                with whole_file.WholeFile(path, whole_file.PRIVATE) as file:
                    os.fchown(file.fd, self._rights.uid, self._rights.gid)
                    file.write(data)
            except OSError as error:
                raise whole_file.cannot_write(path, error) from error


def _drop_rights(rights: Rights, capabilities: int, deadline: float) -> None:
    """Take on the user's ids irrevocably, with the group of the caches; keep at most ``capabilities`` (bits), those of
    the crashed process; limit CPU time and file size. Raises OSError."""
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


NOT_TOLD_APART = 0xFFFFFFFE
"""The user of all processes in namespaces inside one that root made, if their uids are not lent: they count as one
user, because they can make any number of inner namespaces."""


def user_of(pid: int, uid: int, lent: str = "/etc/subuid") -> int:
    """The uid of the user to whom a process belongs. ``uid``: the process's own; ``lent``: the file of lent ranges.

    /etc/subuid lends users ranges of uids (subuid(5)), which their processes can take on in user namespaces and by
    set-user-ID programs. In our own user namespace, the user is the uid itself or the one that it is lent to; in
    others, the user that made the outermost of them. Root makes namespaces for others (containers); these are told
    apart by their lowest uid. Raises OSError.
    """
    own = Path("/proc/self/ns/user").stat()
    namespace, depth = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC), 0
    outer = namespace
    try:
        while not os.path.samestat(os.fstat(outer), own):
            if outer != namespace:
                os.close(namespace)
            namespace, depth = outer, depth + 1
            outer = fcntl.ioctl(namespace, 0xB702)  # NS_GET_PARENT (linux/nsfs.h)
        owner = uid
        if depth:
            owner = struct.unpack("I", fcntl.ioctl(namespace, 0xB704, bytes(4)))[0]  # NS_GET_OWNER_UID
    finally:
        for fd in {namespace, outer}:
            os.close(fd)
    if owner or not depth:
        return _borrower(owner, owner, lent)
    if depth > 1:
        return _borrower(uid, NOT_TOLD_APART, lent)
    lines = proc_files.text(f"/proc/{pid}/uid_map").splitlines()
    return min((integer(line.split()[1]) for line in lines), default=NOT_TOLD_APART)


def _borrower(uid: int, otherwise: int, lent: str) -> int:
    """The uid of the user that ``uid`` is lent to by the file ``lent``; ``otherwise`` if it is not lent. The first uid
    of the range if the borrower is root, which borrows for others, or an unknown name."""
    try:
        with open(lent, errors="replace") as lines:
            for line in lines:
                name, _, numbers = line.strip().partition(":")
                start, _, count = numbers.partition(":")
                if start.isdecimal() and count.isdecimal() and integer(start) <= uid < integer(start) + integer(count):
                    user = 0
                    with contextlib.suppress(KeyError, ValueError):
                        user = integer(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
                    return user or integer(start)
    except (OSError, ValueError):
        pass
    return otherwise


SUFFIXES = ("txt", "json", "rec")
CACHES = "cache"
"""The folder of the users' caches, each named USER-UID."""
STATE_SECONDS = 60
"""Seconds for which ``.last-USER`` is valid."""
_TIME = "%Y%m%d-%H%M%S"


class KeptThing(NamedTuple):
    """A crash or a cache. Their order is that of deletion: caches first, because they can be made again."""

    is_crash: bool
    is_newest: bool
    """It is the crash that was saved last, which is not deleted."""
    when: str
    """The time as in _TIME."""
    name: str
    user: int
    """The uid; -1 if unknown."""
    size: int
    """Bytes on the disk."""


def make_room(folder: Path, newest: str, keep: int, size: int) -> None:
    """Delete crashes and caches until there are at most ``keep`` of each, and ``size`` bytes in all; never the crash
    with the stem ``newest``."""
    for file in [*folder.glob(".last-*"), *folder.glob(".places-*")]:  # the latter are left from earlier versions
        with contextlib.suppress(FileNotFoundError):
            if not 0 <= time.time() - file.stat().st_mtime < STATE_SECONDS:
                file.unlink()
    kept = sorted([*_crashes(folder, newest), *_caches(folder / CACHES)])
    while True:
        crashes = [thing for thing in kept if thing.is_crash]
        caches = [thing for thing in kept if not thing.is_crash]
        too_many = next((things for things in (crashes, caches) if len(things) > max(keep, 1)), None)
        if too_many is None and sum(thing.size for thing in kept) <= size:
            return
        shares = Counter[int]()  # by user: the number if there are too many, else the bytes
        for thing in too_many or kept:
            shares[thing.user] += 1 if too_many else thing.size
        candidates = [thing for thing in too_many or kept if not thing.is_newest]
        victim = max(candidates, key=lambda thing: shares[thing.user], default=None)
        if not victim:
            return
        kept.remove(victim)
        if victim.is_crash:
            for suffix in SUFFIXES:
                (folder / f"{victim.name}.{suffix}").unlink(missing_ok=True)
        else:
            shutil.rmtree(folder / CACHES / victim.name, ignore_errors=True)


def _crashes(folder: Path, newest: str) -> Iterator[KeptThing]:
    """The crashes in the folder, by the names of their files."""
    files: dict[str, list[os.stat_result]] = {}
    for file in folder.glob("crash-*"):
        with contextlib.suppress(FileNotFoundError):
            files.setdefault(file.stem, []).append(file.lstat())
    for stem, stats in files.items():
        before, *when = stem.rsplit("-", 2)
        user = before.rpartition("-")[2].partition(".")[2]
        owner = integer(user) if user.isdecimal() else stats[0].st_uid
        size = sum(stat.st_blocks for stat in stats) * 512  # stat(2)
        yield KeptThing(is_crash=True, is_newest=stem == newest, when="-".join(when), name=stem, user=owner, size=size)


def _caches(folder: Path) -> Iterator[KeptThing]:
    """The caches in the folder; ``when`` is the time of the newest file."""
    for cache in folder.iterdir() if folder.exists() else ():
        blocks, latest = 0, 0.0
        for path, _, names in os.walk(cache):
            for name in [".", *names]:
                with contextlib.suppress(FileNotFoundError):
                    stat = os.lstat(f"{path}/{name}")
                    blocks, latest = blocks + stat.st_blocks, max(latest, stat.st_mtime)
        user = cache.name.partition("-")[0]
        when = time.strftime(_TIME, time.localtime(latest))
        yield KeptThing(False, False, when, cache.name, integer(user) if user.isdecimal() else -1, blocks * 512)
