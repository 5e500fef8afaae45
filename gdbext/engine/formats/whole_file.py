"""Writes all files that gdbext makes: each is complete or does not exist, and is never written through a foreign link.

A file is made without a name (O_TMPFILE), in a folder that an fd holds open, and gets its name when it is complete: a
killed writer leaves nothing. If a file has the name already, or the file system lacks O_TMPFILE, the new file first has
an unguessable hidden name and is then renamed: that replaces a link, not the link's target. The writer locks a hidden
file, so the next command can tell the leftovers of a killed one, and deletes them.

Root may be asked to write into a folder of another user, who can make links there at any time. So a path is walked
component by component, each step from the fd of the folder before: the checked folder is the used one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from typing import NamedTuple

from gdbext.cache import system_user
from gdbext.engine.formats.path_steps import PathSteps
from gdbext.engine.numbers import integer
from gdbext.errors import TargetError

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class ForeignLink(OSError):
    """Another user may have made a link on the path to an output; ``strerror`` names it."""


class FolderEntry(NamedTuple):
    """The name of a file in an open folder. It is no link, except if ``is_magic``: one of the kernel's in /proc (an
    fd), which is not followed by its text."""

    folder: int  # an open fd, which the owner of this record closes
    name: str
    is_magic: bool = False


def find(path: str) -> FolderEntry:
    """The folder and name of the file at ``path``, which need not exist, with trusted links resolved. The user's own
    link is followed, as the shell's ``>`` does; another user's is refused: see ``_may_follow``. Raises OSError."""
    walk = _PathWalk(path)
    try:
        name, is_magic = walk.to_last()
        return FolderEntry(walk.folder, name, is_magic)
    except BaseException:
        os.close(walk.folder)
        raise


def open_folder(path: str, make: bool = False) -> int:
    """An fd (O_PATH) of the folder at ``path``; ``make``: create it and its parents. Raises OSError."""
    walk = _PathWalk(path)
    try:
        walk.to_end(make)
    except BaseException:
        os.close(walk.folder)
        raise
    return walk.folder


class _PathWalk:
    """A walk along one path; ``folder`` is an fd of the last folder that it entered."""

    def __init__(self, path: str) -> None:
        """Begin at "/" or in the current folder. Raises OSError."""
        if not path or "\0" in path:
            raise OSError(errno.ENOENT, "there is no file with such a name")
        self._steps = PathSteps(path)
        self.folder = os.open("/" if path.startswith("/") else ".", _FOLDER)

    def to_last(self) -> tuple[str, bool]:
        """Walk to the last component, which need not exist: (its name, True if it is a link of the kernel's own)."""
        while True:
            name = self._steps.take()
            if not self._steps:
                if name in ("", ".", ".."):
                    raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
                if self._is_magic(name):
                    return name, True
                if not self._follow(name):
                    return name, False
            elif name not in ("", ".") and (self._is_magic(name) or not self._follow(name)):
                self._enter(name)

    def to_end(self, make: bool) -> None:
        """Walk into the last component, a folder; ``make`` missing folders."""
        while self._steps:
            name = self._steps.take()
            if name in ("", ".") or (not self._is_magic(name) and self._follow(name)):
                continue
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self.folder)
            self._enter(name)

    def _enter(self, name: str) -> None:
        """Walk into the folder ``name``. Raises OSError."""
        flags = _FOLDER & ~os.O_NOFOLLOW if self._is_magic(name) else _FOLDER
        self._move(os.open(name, flags, dir_fd=self.folder))

    def _move(self, folder: int) -> None:
        """Go on from the folder with this fd."""
        os.close(self.folder)
        self.folder = folder

    def _follow(self, name: str) -> bool:
        """If ``name`` is a link, continue the walk with its target; else return False. Raises ForeignLink, OSError."""
        try:
            status = os.stat(name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if not stat.S_ISLNK(status.st_mode):
            return False
        if not _may_follow(status, os.fstat(self.folder)):
            raise ForeignLink(errno.ELOOP, f"{name!a} is a link that another user may have made")
        if self._steps.follow(os.readlink(name, dir_fd=self.folder)):
            self._move(os.open("/", _FOLDER))
        return True

    def _is_magic(self, name: str) -> bool:
        """True for a link in /proc, whose text is not its target."""
        try:
            if os.fstat(self.folder).st_dev != os.stat("/proc/self").st_dev:  # noqa: PTH116
                return False
            return stat.S_ISLNK(os.stat(name, dir_fd=self.folder, follow_symlinks=False).st_mode)
        except OSError:
            return False


def _may_follow(link: os.stat_result, folder: os.stat_result) -> bool:
    """True if the link is ours or the system's and, for root, no other user can have moved it into the folder."""
    ours = os.geteuid()
    if link.st_uid not in (ours, system_user()):
        return False
    return ours != 0 or is_closed(folder)


def is_closed(folder: os.stat_result) -> bool:
    """True if only we and the system can move a file of ours into that folder, or out of it."""
    if folder.st_uid not in (os.geteuid(), system_user()):
        return False
    return not folder.st_mode & _WRITABLE_BY_OTHERS or bool(folder.st_mode & stat.S_ISVTX)


FORBIDDEN = "GDBEXT_NO_FILES"
"""An environment variable: a process that has it makes no files, since it answers the server for agents."""
PUBLIC, PRIVATE = 0o666, 0o600  # modes, before the umask: of results, and of files with the memory of a process
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMELESS = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
TRIES = 100  # names that are tried, since another command may delete a new file before it is locked


class WholeFile:
    """A file that gets its name when it is complete. A context manager, which keeps the file unless there is an
    exception.

    A pipe or a device (/dev/stdout) is written directly. If ``path`` is a link of the user (or of the system), its
    target is replaced; a link that another user may have made is refused.
    """

    def __init__(self, path: str, mode: int = PUBLIC) -> None:
        """``mode``: PUBLIC or PRIVATE. Raises OSError."""
        if os.environ.get(FORBIDDEN):
            raise OSError(errno.ENOTSUP, "clients of this server get no files")
        self.path = path
        self._mode = mode
        self._hidden_name = ""  # the name of the file until it is complete, "" if it has none
        self._is_shown = False
        self._entry: FolderEntry | None = find(path)
        try:
            special = _open_special(self._entry)
            self._is_special = special is not None
            self.fd = self._make(self._entry.folder) if special is None else special
            """Open until the file is kept or discarded, then -1."""
        except BaseException:
            self._leave()
            raise

    def _make(self, folder: int) -> int:
        """An fd of a new file in ``folder``, without a name if the file system can do that. Raises OSError."""
        sweep(folder)
        try:
            return os.open(".", _NAMELESS, self._mode, dir_fd=folder)
        except OSError:  # a file system without O_TMPFILE; if it takes no file at all, the next line raises the error
            return self._make_hidden(folder)

    def _make_hidden(self, folder: int) -> int:
        """An fd of a new, locked file in ``folder``, whose name becomes ``_hidden_name``. Raises OSError."""
        for _ in range(TRIES):
            name = hidden_name()
            fd = os.open(name, _NEW, self._mode, dir_fd=folder)
            if lock(fd):
                self._hidden_name = name
                return fd
            os.close(fd)  # another command is about to delete it
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def need(self, size: int) -> None:
        """Check that the disk has room for ``size`` bytes. Raises TargetError if it has not, OSError."""
        if self._is_special:
            return
        disk = os.fstatvfs(self.fd)
        free = disk.f_bavail * disk.f_frsize
        if size > free:
            raise TargetError(
                f"{self.path} would have {size} bytes, and its disk has room for {free}",
                why="an expanded tensor has more elements than its storage",
                help="choose another disk; no partial file was left behind",
            )

    def write(self, data: bytes) -> None:
        """Write all of it. Raises OSError."""
        left = memoryview(data)
        while left:
            left = left[os.write(self.fd, left) :]

    def show(self) -> None:
        """Give the file its name now; further writes are visible immediately. Raises OSError."""
        if not self._entry or self._is_special or self._is_shown:
            return
        folder, name = self._entry.folder, self._entry.name
        if self._hidden_name or not self._link(folder, name):
            if not self._hidden_name:  # the name is taken; a copy has a hidden name already
                hidden = hidden_name()
                lock(self.fd)
                if self._link(folder, hidden):
                    self._hidden_name = hidden
                elif not self._hidden_name:
                    raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            os.rename(self._hidden_name, name, src_dir_fd=folder, dst_dir_fd=folder)
            self._hidden_name = ""
        self._is_shown = True

    def _link(self, folder: int, name: str) -> bool:
        """Link the file without a name as ``name``. False if that name is taken, or the file system cannot (some
        network file systems): then ``fd`` is a copy with a hidden name. Raises OSError."""
        try:
            os.link(f"/proc/self/fd/{self.fd}", name, dst_dir_fd=folder, follow_symlinks=True)
        except FileExistsError:
            return False
        except OSError:
            copy = self._make_hidden(folder)
            try:
                offset = 0
                while piece := os.pread(self.fd, 1 << 20, offset):
                    offset += os.write(copy, piece)
                os.lseek(copy, os.lseek(self.fd, 0, os.SEEK_CUR), os.SEEK_SET)
                os.fsync(copy)
                os.dup2(copy, self.fd, inheritable=False)
            finally:
                os.close(copy)
            return False
        return True

    def keep(self) -> None:
        """Give the file its name if it has none, and close it. Raises OSError and leaves no file then."""
        try:
            if not self._is_special:
                os.fsync(self.fd)
                self.show()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the file and delete it, unless it was kept or shown; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._leave()

    def _leave(self) -> None:
        """Delete the hidden file, if there is one, and close the folder."""
        entry, self._entry = self._entry, None
        if not entry:
            return
        if self._hidden_name:
            with suppress(OSError):
                os.unlink(self._hidden_name, dir_fd=entry.folder)
            self._hidden_name = ""
        os.close(entry.folder)

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Keep the file, or discard it if the block raised an exception (``kind``)."""
        if kind:
            self.discard()
        else:
            self.keep()


def hidden_name() -> str:
    """An unguessable name for a file or folder that is not complete."""
    return f"{_hidden_prefix()}{os.urandom(8).hex()}"


def _hidden_prefix() -> str:
    """The beginning of hidden names, another one after each boot: locks are known on this machine only."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return f".gdbext-{file.read(8).decode()}-"
    except OSError:
        return ".gdbext-"


def lock(fd: int) -> bool:
    """Protect a new file or folder from ``sweep`` until it is closed in this process and its forks; False if another
    command's sweep has it already."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, on which sweep deletes nothing
        return True
    return os.fstat(fd).st_nlink > 0


def sweep(folder: int) -> None:
    """Delete the leftovers of killed commands in that folder: hidden, ours, and locked by no process. Does nothing if
    other users can rename files there: they could give another file of ours such a name."""
    status = os.fstat(folder)
    if not is_closed(status) and (os.geteuid() == 0 or status.st_uid != os.geteuid() or status.st_mode & 0o002):
        return
    with suppress(OSError):  # a folder that cannot be listed
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            prefix = _hidden_prefix()
            for name in os.listdir(readable):  # noqa: PTH208
                if name.startswith(prefix):
                    with suppress(OSError):
                        _delete_abandoned(name, readable)
        finally:
            os.close(readable)


def _delete_abandoned(name: str, folder: int) -> None:
    """Delete a hidden file or folder of ours. Raises OSError (EWOULDBLOCK) if a process holds its lock."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            return
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(status.st_mode):
            os.unlink(name, dir_fd=folder)
        elif stat.S_ISDIR(status.st_mode):
            delete_folder(name, folder, fd)
    finally:
        os.close(fd)


def delete_folder(name: str, folder: int, inside: int) -> None:
    """Delete a folder of files, which the fd ``inside`` has open. Raises OSError if it is not empty then."""
    for file in os.listdir(inside):
        with suppress(OSError):
            os.unlink(file, dir_fd=inside)
    os.rmdir(name, dir_fd=folder)


def _open_special(entry: FolderEntry) -> int | None:
    """An fd for a pipe, a terminal or another device; None for a regular or a missing file. Raises OSError, ForeignLink
    for a device that another user may have put there."""
    if entry.is_magic:
        if os.path.samestat(os.fstat(entry.folder), os.stat("/proc/self/fd")):  # noqa: PTH116
            return os.dup(integer(entry.name))  # so that nothing that our own fd has is overwritten
        return os.open(entry.name, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=entry.folder)
    try:
        status = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode):
        return None
    if status.st_uid != os.geteuid() and not is_closed(os.fstat(entry.folder)):
        raise ForeignLink(errno.ELOOP, f"{entry.name!a} is a pipe or a device that another user may have put there")
    return os.open(entry.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=entry.folder)


def write(path: str, data: bytes, mode: int = PUBLIC) -> None:
    """Write a file with this content. Raises TargetError."""
    try:
        with WholeFile(path, mode) as file:
            file.write(data)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_text(path: str, text: str) -> None:
    """Write a file with this text, which may contain lone surrogates. Raises TargetError."""
    write(path, text.encode("utf-8", "backslashreplace"))


_REASONS = {
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "your disk quota is used up",
    errno.ENOENT: "the folder does not exist",
    errno.ENOTDIR: "a component of its path is a file, not a folder",
    errno.EISDIR: "a folder has that name",
    errno.EACCES: "the folder belongs to another user, or is write-protected",
    errno.EPERM: "the folder does not permit it",
    errno.ENOTSUP: "the MCP server writes no files; run scripts/dispatch itself",
    errno.EROFS: "its disk is mounted read-only",
    errno.ELOOP: "following the link could overwrite a file that its maker may not write",
}


def cannot_write(path: str, error: OSError) -> TargetError:
    """The error for a file that the user named."""
    return TargetError(
        f"cannot write {path}: {error.strerror}",
        why=_REASONS.get(error.errno or 0, "the disk or the network that it is on failed"),
        help="choose a writable folder with enough free space; no partial file was left behind",
    )
