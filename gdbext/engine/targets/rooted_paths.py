"""Paths that are resolved below a folder as if it were the root, and with the rights of the process's user.

The kernel resolves them by openat2(2) with RESOLVE_IN_ROOT (Linux 5.6); if it cannot, or a seccomp filter forbids it,
the path is walked folder by folder. Either way the links of /proc that lead anywhere (proc_pid_fd(5), "magic links")
are not followed, and files are only named (O_PATH): a device or a pipe is not opened.

Root may open every file; a process of another user may name files that its user may not open. So such files are opened
with the user's file-system ids and groups (credentials(7)); memory, registers and /proc/PID/map_files of the process
are always read as root. The ids belong to a thread, and a separate thread adopts them for good: it never switches back
to root. (The main thread would have to, and there Python may raise an error between any two steps: Ctrl+C, a time
limit.) No thread is started for a process of our own user. Only the file-system ids: with the others that user would
have the right to send signals to us.
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
    """The rights of a process (/proc/PID/status). If its four ids differ, the weakest: the first that is not root.
    Raises OSError."""
    values = proc_files.status_values(proc_files.text(f"/proc/{pid}/status"))
    try:
        uids, gids, groups = ([int(word) for word in values[name].split()] for name in ("Uid", "Gid", "Groups"))
    except (KeyError, ValueError) as error:
        raise OSError(errno.EIO, f"/proc/{pid}/status does not say whose process this is") from error
    return Rights(next(filter(None, uids), 0), next(filter(None, gids), 0), tuple(sorted(groups)))


def capabilities_of(pid: int | str) -> int:
    """The permitted capabilities of a process as a mask (linux/capability.h: bit 0 is CAP_CHOWN); 0 if unknown. Raises
    OSError."""
    with suppress(KeyError, ValueError):
        return int(proc_files.status_values(proc_files.text(f"/proc/{pid}/status"))["CapPrm"], 16)
    return 0


class ActingUser:
    """Runs functions with a user's rights, in a separate thread that lasts as long as this object."""

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self._tasks: SimpleQueue[_Task | None] | None = None
        self._process = 0

    def run(self, function: Callable[[], Answer]) -> Answer:
        """Run the function; returns or raises what it does. Raises OSError (EPERM) if the rights cannot be adopted."""
        if not self._tasks or self._process != os.getpid():  # after a fork there is no such thread
            from queue import SimpleQueue  # 2 ms, where a folder is another root

            self._tasks, self._process = SimpleQueue(), os.getpid()
            _thread.start_new_thread(_run_tasks, (self._rights, self._tasks))
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
    """A function for the other thread, and its result or error, which are there once ``done`` is released."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.answer: Any = None
        self.error: BaseException | None = None
        self.done = _thread.allocate_lock()
        self.done.acquire()


def _run_tasks(rights: Rights, tasks: SimpleQueue[_Task | None]) -> None:
    """The work of the thread: adopt the rights, and run tasks until there is a None; without the rights all fail."""
    has_rights = False
    while task := tasks.get():
        try:
            if not has_rights:
                _adopt_rights(rights)
                has_rights = True
            task.answer = task.function()
        except BaseException as error:
            task.error = error
        finally:
            task.done.release()


def _adopt_rights(rights: Rights) -> None:
    """Give this thread those ids and groups, and no capability (capabilities(7)). Raises OSError. Makes the system
    calls themselves, which change one thread; the C library's setgroups changes all threads (setgroups(2), "C
    library/kernel differences")."""
    number, system_call = own_setgroups(), libc.function("syscall")
    setfsgid, setfsuid = libc.function("setfsgid"), libc.function("setfsuid")
    groups = (ctypes.c_uint32 * len(rights.groups))(*rights.groups)
    if not number or system_call(ctypes.c_long(number), ctypes.c_long(len(groups)), groups) != 0:
        raise OSError(errno.EPERM, f"cannot adopt the groups of user {rights.uid}")
    setfsgid(ctypes.c_uint32(rights.gid))
    setfsuid(ctypes.c_uint32(rights.uid))
    keep = ctypes.c_uint32(0xFFFFFFFF)  # an invalid id changes nothing, and the answer is the present one
    if setfsgid(keep) != rights.gid or setfsuid(keep) != rights.uid:
        raise OSError(errno.EPERM, f"cannot adopt the rights of user {rights.uid}")
    libc.limit_capabilities(0)


_OPEN_HOW = struct.Struct("<QQQ")
_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10
"""struct open_how, RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT (linux/openat2.h)."""
_NAME_ONLY = os.O_PATH | os.O_CLOEXEC


class RootedPaths:
    """Names files below the folder ``root``. ``asks_kernel`` False: never use openat2. Raises OSError."""

    def __init__(self, root: str, asks_kernel: bool = True) -> None:
        self._root = -1
        self._asks_kernel = asks_kernel
        self._root = os.open(root, _NAME_ONLY | os.O_DIRECTORY)

    def __del__(self) -> None:
        if self._root >= 0:
            os.close(self._root)

    def name(self, path: str, follow: bool = True) -> int:
        """An fd (O_PATH) of what ``path`` means below the root; ``follow`` False: a link at its end itself. Raises
        OSError."""
        try:
            raw = os.fsencode(path)
        except UnicodeError as error:
            raise OSError(errno.EINVAL, "no file can have this name") from error
        if b"\0" in raw or not raw:
            raise OSError(errno.ENOENT, "no file can have this name")
        if len(raw) >= 4096:  # PATH_MAX with its NUL (linux/limits.h)
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        if self._asks_kernel:
            fd = self._openat2(raw, 0 if follow else os.O_NOFOLLOW)
            if fd is not None:
                return fd
            self._asks_kernel = False
        return self._walk(PathSteps(path), follow)

    def _walk(self, steps: PathSteps, follow: bool) -> int:
        """As ``name``, without openat2: name by name. The folders on the way stay open, so that ".." leads back to them
        and never out of the root."""
        folders = [os.dup(self._root)]
        try:
            while steps:
                name, here = steps.take(), folders[-1]
                if name in ("", "."):
                    if not stat.S_ISDIR(os.fstat(here).st_mode):
                        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                elif name == "..":
                    os.stat(".", dir_fd=here)  # as the kernel: leaving a folder needs the right to search it
                    if len(folders) > 1:
                        os.close(folders.pop())
                else:
                    folders.append(os.open(name, _NAME_ONLY | os.O_NOFOLLOW, dir_fd=here))
                    is_link = stat.S_ISLNK(os.fstat(folders[-1]).st_mode)
                    if is_link and (follow or not steps.are_empty):
                        link = folders.pop()
                        try:
                            is_absolute = steps.follow(os.readlink("", dir_fd=link))
                        finally:
                            os.close(link)
                        while is_absolute and len(folders) > 1:
                            os.close(folders.pop())
            return folders.pop()
        finally:
            for folder in folders:
                os.close(folder)

    def _openat2(self, path: bytes, flags: int) -> int | None:
        """The fd, None if the kernel has no openat2, or a seccomp filter does not know that. Raises OSError."""
        how = _OPEN_HOW.pack(_NAME_ONLY | flags, 0, _IN_ROOT | _NO_MAGICLINKS)
        call, last_error = _system_call()
        number = 0
        for _ in range(32):  # EAGAIN: a folder was renamed meanwhile
            # 437 on every architecture: all numbers since 424 are shared (scripts/syscall.tbl of Linux)
            fd = int(call(437, self._root, path, how, _OPEN_HOW.size))
            if fd >= 0:
                return fd
            number = last_error()
            if number != errno.EAGAIN:
                break
        if number in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            return None
        raise OSError(number, os.strerror(number))


@lru_cache(maxsize=1)
def _system_call() -> tuple[Any, Callable[[], int]]:
    """(syscall(2), function that returns its errno)."""
    function = libc.function("syscall")
    function.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long]
    function.restype = ctypes.c_long
    return function, ctypes.get_errno
