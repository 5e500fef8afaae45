"""Paths that are resolved below a folder as if it were the root: nothing in them leads out of it.

The kernel does that by openat2(2) with RESOLVE_IN_ROOT (Linux 5.6); where it cannot, or a seccomp filter forbids it,
the path is walked folder by folder. Either way the links of /proc that lead anywhere (proc_pid_fd(5), "magic links")
are not followed, and what is found is only named (O_PATH): a device or a pipe is not opened.

The rights of a process's user, taken on while that process's files are opened.

Root may open every file; a process of another user names files that its user may not. So such files are opened with
the user's file-system ids and groups (credentials(7)), and not the whole analysis is done so: memory, registers and
/proc/PID/map_files of the process are read as root all the time.

The ids belong to a thread, and a thread of its own takes them on for good: no way leads from there back to root, so
none can be missed. (The main thread would have to switch back, and Python may raise an error between any two steps
there: Ctrl+C, a time limit.) It is not started for a process of our own user. File-system ids and no others: with its
other ids a thread would take on the right of that user to send signals to us.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import os
import stat
import struct
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine import libc
from gdbext.engine.arch.architectures import own_setgroups
from gdbext.engine.formats.path_steps import PathSteps
from gdbext.engine.targets.system import proc_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue
    from typing import Any, TypeVar

    Answer = TypeVar("Answer")


class Rights(NamedTuple):
    """File-system ids, and supplementary groups in ascending order."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def rights_of(pid: int | str) -> Rights:
    """Those of a process (/proc/PID/status). Where its four ids differ, the least: the first that is not root.

    Raises OSError.
    """
    values = _status(pid)
    try:
        uids, gids, groups = ([int(word) for word in values[name].split()] for name in ("Uid", "Gid", "Groups"))
    except (KeyError, ValueError) as error:
        raise OSError(errno.EIO, f"/proc/{pid}/status does not say whose process this is") from error
    return Rights(_least(uids), _least(gids), tuple(sorted(groups)))


def capabilities_of(pid: int | str) -> int:
    """The permitted capabilities of a process, a bit each (linux/capability.h); 0 where they are not told.

    Raises OSError.
    """
    try:
        return int(_status(pid)["CapPrm"], 16)
    except (KeyError, ValueError):
        return 0


def _status(pid: int | str) -> dict[str, str]:
    """The values of the file, as engine/targets/system/linux.py reads them, which stands above this."""
    lines = proc_files.text(f"/proc/{pid}/status").split("\n")
    return dict(line.partition(":")[::2] for line in lines)


def _least(ids: list[int]) -> int:
    return next((each for each in ids if each), 0)


class ActingUser:
    """Runs functions with those rights, in a thread of its own which lasts as long as this object."""

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self._tasks: SimpleQueue[_Task | None] | None = None
        self._process = 0

    def run(self, function: Callable[[], Answer]) -> Answer:
        """Run the function, and give or raise what it does. Raises OSError (EPERM) where the rights cannot be taken
        on."""
        if not self._tasks or self._process != os.getpid():  # after a fork there is no such thread
            from queue import SimpleQueue  # 2 ms, where a folder is another root

            self._tasks, self._process = SimpleQueue(), os.getpid()
            _thread.start_new_thread(_work, (self._rights, self._tasks))
        task = _Task(function)
        self._tasks.put(task)
        task.done.acquire()
        if task.error:
            raise task.error
        return task.answer  # type: ignore[no-any-return]

    def __del__(self) -> None:
        if self._tasks:
            self._tasks.put(None)


class _Task:
    """One function, and what came of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = _thread.allocate_lock()
        self.done.acquire()

    def run(self, refusal: OSError | None) -> None:
        """Do it, unless there is a refusal."""
        try:
            if refusal:
                raise OSError(refusal.errno, refusal.strerror)
            self.answer = self.function()
        except BaseException as error:
            self.error = error
        finally:
            self.done.release()


def _work(rights: Rights, tasks: SimpleQueue[_Task | None]) -> None:
    refusal = None
    try:
        _take_on(rights)
    except OSError as error:
        refusal = error
    while task := tasks.get():
        task.run(refusal)


def _take_on(rights: Rights) -> None:
    """Give this thread those ids and groups, and no capability (capabilities(7)). Raises OSError.

    The system calls themselves are made, for they are about one thread; the C library's setgroups changes all of them
    (setgroups(2), "C library/kernel differences").
    """
    number, system_call = own_setgroups(), libc.function("syscall")
    setfsgid, setfsuid = libc.function("setfsgid"), libc.function("setfsuid")
    groups = (ctypes.c_uint32 * len(rights.groups))(*rights.groups)
    if not number or system_call(ctypes.c_long(number), ctypes.c_long(len(groups)), groups) != 0:
        raise OSError(errno.EPERM, f"cannot take on the groups of user {rights.uid}")
    setfsgid(ctypes.c_uint32(rights.gid))
    setfsuid(ctypes.c_uint32(rights.uid))
    keep = ctypes.c_uint32(0xFFFFFFFF)  # an invalid id changes nothing, and the answer is the present one
    if setfsgid(keep) != rights.gid or setfsuid(keep) != rights.uid:
        raise OSError(errno.EPERM, f"cannot take on the rights of user {rights.uid}")
    libc.limit_capabilities(0)


_OPENAT2 = 437
"""The number of openat2 on every architecture (scripts/syscall.tbl of Linux: all numbers since 424 are shared)."""
_OPEN_HOW = struct.Struct("<QQQ")
_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10
"""struct open_how, RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT (linux/openat2.h)."""
_NAME_ONLY = os.O_PATH | os.O_CLOEXEC
_NOT_HERE = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL})
"""A kernel without openat2, and what seccomp filters answer that do not know it."""
_RACES = 32
"""Times that openat2 is asked again: EAGAIN says that a folder was renamed meanwhile."""
_LONGEST = 4096
"""PATH_MAX with the byte of its end (linux/limits.h)."""


class RootedPaths:
    """Names files below the folder ``root``. ``asks_kernel`` False: always walk. Raises OSError."""

    def __init__(self, root: str, asks_kernel: bool = True) -> None:
        self._root = -1
        self._asks_kernel = asks_kernel
        self._root = os.open(root, _NAME_ONLY | os.O_DIRECTORY)

    def __del__(self) -> None:
        if self._root >= 0:
            os.close(self._root)

    def name(self, path: str, follow: bool = True) -> int:
        """A descriptor (O_PATH) of what ``path`` means below the root; ``follow`` False: a link at its end is meant
        itself. Raises OSError."""
        raw = _encoded(path)
        extra = 0 if follow else os.O_NOFOLLOW
        if self._asks_kernel:
            found = self._asked(raw, extra)
            if found is not None:
                return found
            self._asks_kernel = False
        return _RootedWalk(self._root).name(path, follow)

    def _asked(self, path: bytes, extra: int) -> int | None:
        """The kernel's answer, None where it knows no such question. Raises OSError."""
        how = _OPEN_HOW.pack(_NAME_ONLY | extra, 0, _IN_ROOT | _NO_MAGICLINKS)
        call, last_error = _system_call()
        number = 0
        for _ in range(_RACES):
            found = int(call(_OPENAT2, self._root, path, how, _OPEN_HOW.size))
            if found >= 0:
                return found
            number = last_error()
            if number != errno.EAGAIN:
                break
        if number in _NOT_HERE:
            return None
        raise OSError(number, os.strerror(number))


@lru_cache(maxsize=1)
def _system_call() -> tuple[Any, Callable[[], int]]:
    """syscall(2), and what its error was."""
    found = libc.function("syscall")
    found.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long]
    found.restype = ctypes.c_long
    return found, ctypes.get_errno


def _encoded(path: str) -> bytes:
    try:
        raw = os.fsencode(path)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, "no file can have this name") from error
    if b"\0" in raw or not raw:
        raise OSError(errno.ENOENT, "no file can have this name")
    if len(raw) >= _LONGEST:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return raw


class _RootedWalk:
    """One path, name by name. Folders that were come through stay open, so that ".." leads back and never out."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._folders: list[int] = []

    def name(self, path: str, follow: bool) -> int:
        """The name as RootedPaths.name has it. Raises OSError."""
        rest = PathSteps(path)
        found = -1
        try:
            while rest:
                if found >= 0:
                    self._folders.append(found)
                    found = -1
                    if not stat.S_ISDIR(os.fstat(self._here).st_mode):
                        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                found = self._step(rest, follow)
            return found if found >= 0 else os.open(".", _NAME_ONLY, dir_fd=self._here)
        finally:
            for folder in self._folders:
                with suppress(OSError):
                    os.close(folder)

    @property
    def _here(self) -> int:
        return self._folders[-1] if self._folders else self._root

    def _step(self, rest: PathSteps, follow: bool) -> int:
        """Take the next name from ``rest``: a descriptor of what it means, -1 where we stay or are led elsewhere."""
        name = rest.take()
        if name in ("", "."):
            return -1
        if name == "..":
            if self._folders:
                os.stat(".", dir_fd=self._here)  # as the kernel: only who may search it gets out of it
                os.close(self._folders.pop())
            return -1
        found = os.open(name, _NAME_ONLY | os.O_NOFOLLOW, dir_fd=self._here)
        if not stat.S_ISLNK(os.fstat(found).st_mode) or not (follow or not rest.are_empty):
            return found
        try:
            self._follow(found, rest)
        finally:
            os.close(found)
        return -1

    def _follow(self, link: int, rest: PathSteps) -> None:
        """Put what the link says before ``rest``."""
        if rest.follow(os.readlink("", dir_fd=link)):
            while self._folders:
                os.close(self._folders.pop())
