"""Opens the files that a target names: of a process, a core, a recording, another machine.

The target chooses these names and may be hostile: they may lead to our files, to a pipe, to a device, to an endless
file, out of a container. So they are opened only here:

- below an fd of the target's root, which no ".." and no link leaves (rooted_paths.py);
- regular files only, without blocking, and none larger than the caller allows;
- with the rights of the process's user (rooted_paths.py);
- for a core without --sysroot (not even "/"), only what is proven to be its own: ELF files by their contents
  (core_target.py, engine/process/modules.py), Python sources below the folders of a proven interpreter.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.path_steps import MAX_LINKS
from gdbext.engine.targets.rooted_paths import ActingUser, RootedPaths, rights_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Optional

    from gdbext.engine.targets.rooted_paths import Answer

    Ask = Callable[[Callable[[], bytes]], Optional[bytes]]
    """Runs a function in a child of ours; None if the kernel blocks it."""

LARGEST_LIBRARY = 1 << 36
"""Bytes of an ELF file: it is mapped, and takes no memory before it is read."""


class ForeignFiles:
    """The files of one target. All methods that open or ask raise OSError; a path is absolute, as the target names it,
    or as ``local_path`` returns it."""

    vouched = True
    """They are known to be the target's own files. False: they are at a core's paths on this machine, no more."""

    def __init__(self, root: str = "", user: Callable[[], ActingUser | None] = lambda: None) -> None:
        """``root`` is the folder that has them, "" or "/" for our own root; ``user`` returns who opens them, None for
        this process."""
        self.root = root.rstrip("/")
        self._user = user
        self._permitted: frozenset[str] = frozenset()
        self._ask: Ask | None = None
        self._served: tuple[str, ...] = ()  # mount points, with a slash, of file systems that need a server
        self._answers: dict[str, bool] = {}  # folder → True if its file system answered
        self._failures: dict[str, int] = {}  # mount point → number of folders for which it did not answer
        self._source_belongs: Callable[[str], bool] = lambda _: True

    @classmethod
    def of_process(cls, pid: int, served: Sequence[str] = (), ask: Ask | None = None) -> ForeignFiles:
        """The files that a process of this machine sees, opened with its user's rights. ``served`` are mount points of
        file systems whose server may not answer any more: there ``ask`` touches a file of each folder first."""
        files = cls(process_root(pid), lambda: _acting_user(pid))
        files._served = tuple(f"{mount_point.rstrip('/')}/" for mount_point in served)
        files._ask = ask if served else None
        return files

    @classmethod
    def of_core(cls, sysroot: str, source_belongs: Callable[[str], bool] = lambda _: False) -> ForeignFiles:
        """The files below ``sysroot``, "/" for this machine's own. "": files of this machine that happen to have these
        names; ``source_belongs`` decides which sources are shown."""
        files = cls(sysroot)
        if not sysroot:
            files.vouched = False
            files._source_belongs = source_belongs
        return files

    @classmethod
    def none(cls) -> ForeignFiles:
        """No files: the target is a recording."""
        return _NoFiles()

    def permit(self, path: str) -> None:
        """Permit a file of this machine that the user has named (the program that a debugger was given)."""
        self._permitted |= {path}

    @property
    def are_another_users(self) -> bool:
        """The process belongs to another user, or has exited and may have."""
        try:
            return self._user_thread is not None
        except OSError:
            return True

    # --- names -----------------------------------------------------------------------------------

    def local_path(self, path: str) -> str:
        """Our name of the file, for messages and for code that needs a name; only ``open`` opens it. The maps of a
        process in a chroot, and the core that a debugger makes of it, name its files from the outside, with the root
        (proc_pid_maps(5)). The root is not added to such a path once more."""
        if not self.root or not path.startswith("/"):
            return path
        if path.startswith(self._outer_prefix) and not self._has_file(path):
            return self.root + path[len(self._outer_prefix) - 1 :]
        return self.root + path

    @cached_property
    def _outer_prefix(self) -> str:
        """The real path of the root, with a slash; if that is our own root, a prefix that no path has."""
        root = os.path.realpath(self.root)
        return f"{root.rstrip('/')}/" if root != "/" else "\0"

    def _has_file(self, path: str) -> bool:
        """Something is at that path below the root."""
        with suppress(OSError):
            os.close(self._as_user(lambda paths: paths.name(path)))
            return True
        return False

    def answers(self, path: str) -> bool:
        """True if the file system of that file answers. If it needs a server, a child tries once for each folder; after
        two folders of a file system without an answer no other one of it is tried."""
        mount_point = self._served_mount_point(path) if self._ask else ""
        if not self._ask or not mount_point:
            return True
        folder = path.rpartition("/")[0]
        if folder not in self._answers:
            silent = self._failures.get(mount_point, 0)
            answer = self._ask(lambda: self._touch(path)) if silent < 2 else None
            self._answers[folder] = answer is not None
            self._failures[mount_point] = silent + (answer is None)
        return self._answers[folder]

    def _served_mount_point(self, path: str) -> str:
        """The mount point of the file system that the path leads into and that needs a server, "" for none. Links are
        followed one by one, and none beyond that mount point, so that no server has to answer."""
        walked, links, rest = "", 0, path.split("/")[::-1]
        while rest and links <= MAX_LINKS:
            part = rest.pop()
            if part in ("", ".", ".."):
                walked = walked.rpartition("/")[0] if part == ".." else walked
                continue
            walked = f"{walked}/{part}"
            if mount_points := [point for point in self._served if f"{walked}/".startswith(point)]:
                return max(mount_points, key=len)
            try:
                link = os.readlink(f"{self.root}{walked}")  # noqa: PTH115 - pathlib is slow to import
            except (OSError, ValueError):  # ValueError: a NUL
                continue
            walked, links = "" if link.startswith("/") else walked.rpartition("/")[0], links + 1
            rest += link.split("/")[::-1]
        return "/" if links > MAX_LINKS else ""

    def _touch(self, path: str) -> bytes:
        """Read a byte of the file, in a child: an error is an answer of the file system, too."""
        self._ask = None  # in the child, which exits after this
        with suppress(OSError):
            os.pread(self.open(path, LARGEST_LIBRARY), 1, 0)
        return b"1"

    def _inside(self, path: str) -> str:
        """The path below the root, of a path of the target or a local one. Raises OSError."""
        if not self.answers(path):
            raise OSError(errno.ETIMEDOUT, "its file system does not answer", path)
        if not path.startswith("/"):
            raise OSError(errno.EINVAL, "it is not known from which folder this is named", path)
        if not self.root:
            return path
        local = path if path.startswith(f"{self.root}/") and not self._has_file(path) else self.local_path(path)
        return local[len(self.root) :]

    # --- files -----------------------------------------------------------------------------------

    def open(self, path: str, limit: int) -> int:
        """An fd for reading a regular file of at most ``limit`` bytes."""
        if path in self._permitted:
            return _open_regular(os.open(path, os.O_PATH | os.O_CLOEXEC), limit)
        inside = self._inside(path)
        return self._as_user(lambda paths: _open_regular(paths.name(inside), limit))

    def read(self, path: str, limit: int) -> tuple[bytes, float]:
        """(contents, st_mtime) of a file. What is appended meanwhile is not read: it may never end."""
        fd = self.open(path, limit)
        try:
            status = os.fstat(fd)
            pieces, left = [], min(limit, status.st_size)
            while left > 0 and (piece := os.read(fd, left)):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces), status.st_mtime
        finally:
            os.close(fd)

    def source(self, path: str, limit: int) -> tuple[bytes, float]:
        """As ``read``, for a Python source whose lines are shown: without --sysroot it must be proven."""
        if not self._source_belongs(path):
            raise PermissionError(errno.EACCES, "nothing proves that this source is the core's own", path)
        return self.read(path, limit)

    def is_unproven_source(self, path: str) -> bool:
        """True if ``source`` refuses this path because nothing proves that it is the core's own."""
        return path.startswith("/") and not self._source_belongs(path)

    def image(self, path: str, machine: int | None = None) -> ElfImage:
        """The ELF file. Raises SymbolFileError, no OSError."""
        return ElfImage.of(path, lambda: self.open(path, LARGEST_LIBRARY), machine)

    def status(self, path: str) -> os.stat_result:
        """The answer of stat(2); nothing is opened."""
        inside = self._inside(path)
        return self._as_user(lambda paths: _status(paths.name(inside)))

    def exists(self, path: str) -> bool | None:
        """True if the process would find a file there; None if unknown."""
        try:
            self.status(path)
        except FileNotFoundError:
            return False
        except OSError:
            return None
        return True

    def names(self, folder: str) -> list[str]:
        """The names in a folder, at most 65,536."""
        inside = self._inside(folder)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
        fd = self._as_user(lambda paths: _reopened(paths.name(inside), flags))
        try:
            return os.listdir(fd)[: 1 << 16]  # noqa: PTH208 - of an fd
        finally:
            os.close(fd)

    def _as_user(self, function: Callable[[RootedPaths], Answer]) -> Answer:
        """The result of ``function``, which gets the paths below the root and runs with the user's rights."""
        paths, acting = self._paths, self._user_thread
        return acting.run(lambda: function(paths)) if acting else function(paths)

    @cached_property
    def _paths(self) -> RootedPaths:
        """The root itself is opened with our own rights."""
        return RootedPaths(self.root or "/")

    @cached_property
    def _user_thread(self) -> ActingUser | None:
        return self._user()


class _NoFiles(ForeignFiles):
    """No file exists."""

    vouched = False

    def _as_user(self, function: Callable[[RootedPaths], Answer]) -> Answer:  # noqa: ARG002
        raise FileNotFoundError(errno.ENOENT, "a recording's files are in the recording")


def linked_image(link: str, machine: int | None = None) -> ElfImage:
    """The ELF file that a link of the kernel leads to: /proc/PID/exe, /proc/PID/map_files/RANGE. It is the very file
    that the process has mapped; its user may lack the right to open it this way. Raises SymbolFileError."""
    return ElfImage.of(link, lambda: _open_regular(os.open(link, os.O_PATH | os.O_CLOEXEC), LARGEST_LIBRARY), machine)


def process_root(pid: int) -> str:
    """Our path of the root of a local process: "" if it sees the same files as we do, else /proc/PID/root."""
    root = f"/proc/{pid}/root"
    with suppress(OSError):
        same_mounts = os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt")  # noqa: PTH121
        return "" if same_mounts and os.path.samefile(root, "/") else root  # noqa: PTH121
    return root


def _acting_user(pid: int) -> ActingUser | None:
    """A thread with the rights of the process's user; None if we have them, or fewer: only root can adopt others."""
    rights = rights_of(pid) if os.geteuid() == 0 else None
    return ActingUser(rights) if rights and rights.uid else None


def _open_regular(named: int, limit: int) -> int:
    """An fd for reading the regular file that ``named`` (O_PATH, closed here) refers to, without blocking. Raises
    OSError."""
    status = os.fstat(named)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return _reopened(named, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    os.close(named)
    if stat.S_ISREG(status.st_mode):
        raise OSError(errno.EFBIG, f"larger than {limit} bytes")
    raise OSError(errno.EINVAL, "no regular file")


def _reopened(named: int, flags: int) -> int:
    """An fd of the file that ``named`` (O_PATH, closed here) refers to, opened with these O_ flags. Raises OSError."""
    try:
        return os.open(f"/proc/self/fd/{named}", flags)
    finally:
        os.close(named)


def _status(named: int) -> os.stat_result:
    """The status of the file that ``named`` (O_PATH, closed here) refers to."""
    try:
        return os.fstat(named)
    finally:
        os.close(named)
