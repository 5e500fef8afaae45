"""The one door for files that we make: each is whole, or not there, and never written through another user's link.

A file is made without a name (O_TMPFILE), in a folder that is held by an fd, and gets its name when it is whole:
a writer that is killed leaves nothing. Where a file has the name already, or the disk has no files without names, it
is first hidden under an unguessable name, and then renamed: that replaces a link that lies under the name, and leaves
alone what it leads to. The writer holds a lock on what is hidden, so the next command knows what a killed one has left,
and deletes it.

Root, when it inspects another user's process, may be asked to write into a folder of that user, who can lay links there
at any time. So a path is walked component by component, and every step is taken from the fd of the one before:
what is checked is what is used.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import NamedTuple

from gdbext.cache import system_user
from gdbext.engine.formats.path_steps import PathSteps
from gdbext.engine.numbers import integer
from gdbext.errors import TargetError

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KIND, _IS_LINK, _REGULAR, _DIRECTORY = 0o170000, 0o120000, 0o100000, 0o040000
_WRITABLE_BY_OTHERS, _STICKY = 0o022, 0o1000


class ForeignLink(OSError):
    """A link on the way to an output that another user may have laid; ``strerror`` names it."""


class FolderEntry(NamedTuple):
    """The place of a file in an open folder. ``name`` is not a link to follow, except if ``is_magic``: then the kernel
    knows where it leads (an fd in /proc)."""

    folder: int
    """An open fd, which the owner of the entry closes."""
    name: str
    is_magic: bool = False


def find(path: str) -> FolderEntry:
    """The place of the file of that name, behind links that we trust. Raises OSError. A user's own link is followed, as
    the shell's ``>`` does; that of another user is refused: see ``_may_follow``."""
    walk = _PathWalk(path)
    try:
        name, is_magic = walk.to_last()
        return FolderEntry(walk.folder, name, is_magic)
    except BaseException:
        walk.close()
        raise


def open_folder(path: str, make: bool = False) -> int:
    """An fd (O_PATH) of the folder, which is made with its parents on request. Raises OSError."""
    walk = _PathWalk(path)
    try:
        walk.to_end(make)
    except BaseException:
        walk.close()
        raise
    return walk.folder


class _PathWalk:
    """The way along one path; ``folder`` is how far it came."""

    def __init__(self, path: str) -> None:
        if not path or "\0" in path:
            raise OSError(errno.ENOENT, "there is no file with such a name")
        self._steps = PathSteps(path)
        self.folder = os.open("/" if path.startswith("/") else ".", _FOLDER)

    def to_last(self) -> tuple[str, bool]:
        """Go to the last component, which need not be there: (its name, whether it is a link of the kernel's own)."""
        while True:
            name = self._steps.take()
            if not self._steps:
                if name in ("", ".", ".."):
                    raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
                if self._is_magic(name):
                    return name, True
                if not self._followed(name):
                    return name, False
            elif name not in ("", ".") and (self._is_magic(name) or not self._followed(name)):
                self._enter(name)

    def to_end(self, make: bool) -> None:
        """Go to the end, which is a folder."""
        while self._steps:
            name = self._steps.take()
            if name in ("", ".") or (not self._is_magic(name) and self._followed(name)):
                continue
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self.folder)
            self._enter(name)

    def close(self) -> None:
        """Close the folder, after an error."""
        os.close(self.folder)

    def _enter(self, name: str) -> None:
        how = _FOLDER & ~os.O_NOFOLLOW if self._is_magic(name) else _FOLDER
        self._move(os.open(name, how, dir_fd=self.folder))

    def _move(self, folder: int) -> None:
        os.close(self.folder)
        self.folder = folder

    def _followed(self, name: str) -> bool:
        """True for a link, after which the walk continues where it leads. Raises ForeignLink, OSError."""
        try:
            status = os.stat(name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if status.st_mode & _KIND != _IS_LINK:
            return False
        if not _may_follow(status, os.fstat(self.folder)):
            raise ForeignLink(errno.ELOOP, f"{name!a} is a link that another user may have laid")
        if self._steps.follow(os.readlink(name, dir_fd=self.folder)):
            self._move(os.open("/", _FOLDER))
        return True

    def _is_magic(self, name: str) -> bool:
        """A link in /proc: what its text says is not where it leads."""
        try:
            if os.fstat(self.folder).st_dev != os.stat("/proc/self").st_dev:  # noqa: PTH116
                return False
            return os.stat(name, dir_fd=self.folder, follow_symlinks=False).st_mode & _KIND == _IS_LINK
        except OSError:
            return False


def _may_follow(link: os.stat_result, folder: os.stat_result) -> bool:
    """The link is ours or the system's; for root also: nobody else can have moved it, or a hard link to it, there."""
    ours = os.geteuid()
    if link.st_uid not in (ours, system_user()):
        return False
    return ours != 0 or is_closed(folder)


def is_closed(folder: os.stat_result) -> bool:
    """True if nobody but us and the system can put a file of ours into that folder, or take one away."""
    if folder.st_uid not in (os.geteuid(), system_user()):
        return False
    return not folder.st_mode & _WRITABLE_BY_OTHERS or bool(folder.st_mode & _STICKY)


FORBIDDEN = "GDBEXT_NO_FILES"
"""The environment variable of a process that makes no files: one that answers the server for agents."""
PUBLIC, PRIVATE = 0o666, 0o600
"""Modes, before the umask: of results, and of what holds the memory of a process."""
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMELESS = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 1 << 20
TRIES = 100
"""Names that are tried where others delete what was just made."""


class WholeFile:
    """A file that gets its name when it is whole. A context manager, which keeps what was written without an exception.

    What is no regular file (a pipe, /dev/stdout) is written at once. Where ``path`` is a link of the user's own (or of
    the system), the file that it leads to is replaced; a link that another user may have laid is refused.
    """

    def __init__(self, path: str, mode: int = PUBLIC) -> None:
        """``mode``: PUBLIC or PRIVATE. Raises OSError."""
        if os.environ.get(FORBIDDEN):
            raise OSError(errno.ENOTSUP, "clients of this server get no files")
        self.path = path
        self._mode = mode
        self._hidden_name = ""
        """The name of the file until it is whole, "" where it has none."""
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
        sweep(folder)
        try:
            return os.open(".", _NAMELESS, self._mode, dir_fd=folder)
        except OSError:  # a disk without such files; where none can be made at all, the next line says so
            return self._make_hidden(folder)

    def _make_hidden(self, folder: int) -> int:
        for _ in range(TRIES):
            name = hidden_name()
            fd = os.open(name, _NEW, self._mode, dir_fd=folder)
            if lock(fd):
                self._hidden_name = name
                return fd
            os.close(fd)  # another command is about to delete it
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def need(self, size: int) -> None:
        """Check that the disk has room for ``size`` bytes. Raises TargetError where it has not, OSError."""
        if self._is_special:
            return
        disk = os.fstatvfs(self.fd)
        free = disk.f_bavail * disk.f_frsize
        if size > free:
            raise TargetError(
                f"{self.path} would have {size} bytes, and its disk has room for {free}",
                why="an expanded tensor has more elements than memory",
                help="name a file on another disk; nothing was left behind",
            )

    def write(self, data: bytes) -> None:
        """Write all of it. Raises OSError."""
        left = memoryview(data)
        while left:
            left = left[os.write(self.fd, left) :]

    def show(self) -> None:
        """Give it its name now: what is still to be written appears as it is written. Raises OSError."""
        if not self._entry or self._is_special or self._is_shown:
            return
        folder, name = self._entry.folder, self._entry.name
        if self._hidden_name or not self._link(folder, name):
            if not self._hidden_name:  # a copy has a hidden name already
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
        """Give the file without a name this one; False if another has it, or the disk cannot, as some network disks:
        then it becomes a copy with a hidden name. Raises OSError."""
        try:
            os.link(f"/proc/self/fd/{self.fd}", name, dst_dir_fd=folder, follow_symlinks=True)
        except FileExistsError:
            return False
        except OSError:
            copy = self._make_hidden(folder)
            try:
                offset = 0
                while piece := os.pread(self.fd, _PIECE, offset):
                    offset += os.write(copy, piece)
                os.lseek(copy, os.lseek(self.fd, 0, os.SEEK_CUR), os.SEEK_SET)
                os.fsync(copy)
                os.dup2(copy, self.fd, inheritable=False)
            finally:
                os.close(copy)
            return False
        return True

    def keep(self) -> None:
        """Give it its name if it has none yet, and close it. Raises OSError; nothing is left then."""
        try:
            if not self._is_special:
                os.fsync(self.fd)
                self.show()
        finally:
            self.discard()

    def discard(self) -> None:
        """Leave what was there before, unless it was kept or shown; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._leave()

    def _leave(self) -> None:
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
        if kind:
            self.discard()
        else:
            self.keep()


def hidden_name() -> str:
    """An unguessable name for what gets another one when it is whole, or is deleted."""
    return f"{_prefix()}{os.urandom(8).hex()}"


def _prefix() -> str:
    """The beginning of hidden names since this machine was started: locks are only known here."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return f".gdbext-{file.read(8).decode()}-"
    except OSError:
        return ".gdbext-"


def lock(fd: int) -> bool:
    """Protect what was just made from ``sweep`` until it is closed, at the latest by the end of this process and of
    its forks; False if a sweep came first."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a disk without locks: what cannot be locked is not swept
        return True
    return os.fstat(fd).st_nlink > 0


def sweep(folder: int) -> None:
    """Delete what killed commands have left in that folder: hidden, ours, and locked by no process. Not where others
    can move files: they could give something else of ours such a name."""
    status = os.fstat(folder)
    if not is_closed(status) and (os.geteuid() == 0 or status.st_uid != os.geteuid() or status.st_mode & 0o002):
        return
    with suppress(OSError):  # a folder that cannot be listed
        listed = os.open(".", _LISTED, dir_fd=folder)
        try:
            prefix = _prefix()
            for name in os.listdir(listed):  # noqa: PTH208
                if name.startswith(prefix):
                    with suppress(OSError):
                        _delete_abandoned(name, listed)
        finally:
            os.close(listed)


def _delete_abandoned(name: str, folder: int) -> None:
    """Delete a hidden file or folder of ours. Raises OSError (EWOULDBLOCK) if a process holds its lock."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            return
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if status.st_mode & _KIND == _REGULAR:
            os.unlink(name, dir_fd=folder)
        elif status.st_mode & _KIND == _DIRECTORY:
            delete_folder(name, folder, fd)
    finally:
        os.close(fd)


def delete_folder(name: str, folder: int, inside: int) -> None:
    """Delete a folder of files, which the fd ``inside`` has open. Raises OSError where something stays."""
    for file in os.listdir(inside):
        with suppress(OSError):
            os.unlink(file, dir_fd=inside)
    os.rmdir(name, dir_fd=folder)


def _open_special(entry: FolderEntry) -> int | None:
    """An fd for a pipe, a terminal or another device; None for a regular file, there or still to be made. One
    that another user may have put there is refused. Raises OSError."""
    if entry.is_magic:
        if os.path.samestat(os.fstat(entry.folder), os.stat("/proc/self/fd")):  # noqa: PTH116
            return os.dup(integer(entry.name))  # so that nothing that our own fd has is overwritten
        return os.open(entry.name, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=entry.folder)
    try:
        status = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if status.st_mode & _KIND == _REGULAR:
        return None
    if status.st_uid != os.geteuid() and not is_closed(os.fstat(entry.folder)):
        raise ForeignLink(errno.ELOOP, f"{entry.name!a} is a pipe or a device that another user may have put there")
    return os.open(entry.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=entry.folder)


def write(path: str, data: bytes, mode: int = PUBLIC) -> None:
    """Write the whole file at once. Raises TargetError."""
    try:
        with WholeFile(path, mode) as file:
            file.write(data)
    except OSError as error:
        raise cannot_write(path, error) from error


def write_text(path: str, text: str) -> None:
    """Write a text, which may hold anything that was read of a process. Raises TargetError."""
    write(path, text.encode("utf-8", "backslashreplace"))


_REASONS = {
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "your share of its disk is used up",
    errno.ENOENT: "the folder does not exist",
    errno.ENOTDIR: "what should be its folder is a file",
    errno.EISDIR: "there is a folder of that name",
    errno.EACCES: "the folder belongs to another user, or is write-protected",
    errno.EPERM: "the folder does not permit it",
    errno.ENOTSUP: "files are written by scripts/dispatch itself, not by its server for agents",
    errno.EROFS: "its disk is mounted read-only",
    errno.ELOOP: "following it might overwrite a file that its maker may not write, and we may",
}


def cannot_write(path: str, error: OSError) -> TargetError:
    """The error for a file of the user's choice."""
    return TargetError(
        f"cannot write {path}: {error.strerror}",
        why=_REASONS.get(error.errno or 0, "the disk or the network that it is on failed"),
        help="name a file in a folder that you may write to, with room for it; nothing was left behind",
    )
