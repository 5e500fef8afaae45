"""The one door for files that a target names: of a process, a core, a recording, another machine.

Whoever made the target chose these names, and means us harm where he can: they lead to our files, to a pipe, to a
device, to a file without an end, out of a container. So they are opened here and nowhere else:

- below a descriptor of the target's root, which no ".." and no link leaves (rooted_paths.py);
- regular files only, without waiting, and none larger than the caller allows;
- with the rights of the process's user (rooted_paths.py);
- of a core whose files nobody vouched for (no --sysroot, not even "/"), only what is proven to be its own: ELF files by
  their contents (mapped_files.py, engine/process/modules.py), Python sources below the folders of a proven interpreter.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.targets.rooted_paths import ActingUser, RootedPaths, rights_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Optional

    from gdbext.engine.targets.rooted_paths import Answer

    Ask = Callable[[Callable[[], bytes]], Optional[bytes]]
    """Has a child of ours do something; None where the kernel does not let it go on."""

LARGEST_LIBRARY = 1 << 36
"""Bytes of an ELF file: it is mapped, and takes no memory before it is read."""
_NEVER_WAIT = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_NAMES = 1 << 16
_MOST_LINKS = 40
"""Links of one path that are followed, as the kernel does (MAXSYMLINKS, include/linux/namei.h)."""
_MOST_SILENT = 2
"""Folders of one file system that do not answer, from which on no other one of it is asked."""


class ForeignFiles:
    """The files of one target. All that opens or asks raises OSError; a path is absolute, as the target names it, or as
    ``local_path`` gives it."""

    vouched = True
    """These are the target's own files. False for those that happen to lie on this machine at a core's paths."""

    def __init__(self, root: str = "", user: Callable[[], ActingUser | None] = lambda: None) -> None:
        """``root`` is the folder below which they are, "" or "/" our own root; ``user`` has the rights to open them."""
        self.root = root.rstrip("/")
        self._user = user
        self._given: frozenset[str] = frozenset()
        self._ask: Ask | None = None
        self._served: tuple[str, ...] = ()
        self._answering: dict[str, bool] = {}
        self._silent: dict[str, int] = {}
        self._source_belongs: Callable[[str], bool] = lambda _: True

    @classmethod
    def of_process(cls, pid: int, served: Sequence[str] = (), ask: Ask | None = None) -> ForeignFiles:
        """Those that a process of this machine sees, opened with its user's rights. ``served`` are the places of file
        systems whose server may answer nobody any more: there ``ask`` touches a file of each folder first."""
        files = cls(process_root(pid), lambda: _acting_user(pid))
        files._served = tuple(f"{place.rstrip('/')}/" for place in served)
        files._ask = ask if served else None
        return files

    @classmethod
    def of_core(cls, sysroot: str, source_belongs: Callable[[str], bool] = lambda _: False) -> ForeignFiles:
        """Those below ``sysroot``, "/" for this machine's own. "" says nothing: files of this machine happen to have
        these names, and ``source_belongs`` says which sources are shown."""
        files = cls(sysroot)
        if not sysroot:
            files.vouched = False
            files._source_belongs = source_belongs
        return files

    @classmethod
    def none(cls) -> ForeignFiles:
        """No file at all: the target is a recording."""
        return _NoFiles()

    def give(self, path: str) -> None:
        """A file of this machine that the user himself has named (the program that a debugger was given)."""
        self._given |= {path}

    @property
    def are_anothers(self) -> bool:
        """They are opened with the rights of another user, whose process it is; that of one that has gone may be."""
        try:
            return self._acting is not None
        except OSError:
            return True

    # --- names -----------------------------------------------------------------------------------

    def local_path(self, path: str) -> str:
        """The path by which we name the file, for messages and for who needs a name; it is opened by ``open`` alone.

        The maps of a process in a chroot, and the core that a debugger makes of it, name its files from the outside:
        below the root already (proc_pid_maps(5)). Such a path is not looked for below it once more.
        """
        if not self.root or not path.startswith("/"):
            return path
        if path.startswith(self._outer) and not self._has(path):
            return self.root + path[len(self._outer) - 1 :]
        return self.root + path

    @cached_property
    def _outer(self) -> str:
        """The root as it is called from the outside, with a slash; where that is our own root, no path begins so."""
        return os.path.realpath(self.root).rstrip("/") + "/" if os.path.realpath(self.root) != "/" else "\0"

    def _has(self, path: str) -> bool:
        try:
            os.close(self._as_user(lambda paths: paths.name(path)))
        except OSError:
            return False
        return True

    def answers(self, path: str) -> bool:
        """The file system of that file answers. Where it needs a server a child finds out, once for each folder."""
        place = self._server_of(path) if self._ask else ""
        if not self._ask or not place:
            return True
        folder = path.rpartition("/")[0]
        if folder not in self._answering:
            silent = self._silent.get(place, 0)
            found = self._ask(lambda: self._touched(path)) if silent < _MOST_SILENT else None
            self._answering[folder] = found is not None
            self._silent[place] = silent + (found is None)
        return self._answering[folder]

    def _server_of(self, path: str) -> str:
        """The place of the file system which the path leads into and which needs a server, "" for none: links are
        followed one by one, and none beyond that place, so that nobody has to answer."""
        at, links, rest = "", 0, path.split("/")[::-1]
        while rest and links <= _MOST_LINKS:
            part = rest.pop()
            if part in ("", ".", ".."):
                at = at.rpartition("/")[0] if part == ".." else at
                continue
            at = f"{at}/{part}"
            if f"{at}/".startswith(self._served):
                return max((each for each in self._served if f"{at}/".startswith(each)), key=len)
            try:
                link = os.readlink(f"{self.root}{at}")  # noqa: PTH115 - pathlib is slow to import
            except (OSError, ValueError):  # ValueError: a NUL
                continue
            at, links = "" if link.startswith("/") else at.rpartition("/")[0], links + 1
            rest += link.split("/")[::-1]
        return "/" if links > _MOST_LINKS else ""

    def _touched(self, path: str) -> bytes:
        self._ask = None  # in the child, which ends after this
        with suppress(OSError):  # an answer, too
            os.pread(self.open(path, LARGEST_LIBRARY), 1, 0)
        return b"1"

    def _inside(self, path: str) -> str:
        """The path from the root; of a local path, too."""
        if not self.answers(path):
            raise OSError(errno.ETIMEDOUT, "its file system does not answer", path)
        if not path.startswith("/"):
            raise OSError(errno.EINVAL, "it is not known from which folder this is named", path)
        if not self.root:
            return path
        local = path if path.startswith(f"{self.root}/") and not self._has(path) else self.local_path(path)
        return local[len(self.root) :]

    # --- files -----------------------------------------------------------------------------------

    def open(self, path: str, limit: int) -> int:
        """A descriptor for reading a regular file of at most ``limit`` bytes."""
        if path in self._given:
            return _opened(os.open(path, os.O_PATH | os.O_CLOEXEC), limit)
        inside = self._inside(path)
        return self._as_user(lambda paths: _opened(paths.name(inside), limit))

    def read(self, path: str, limit: int) -> tuple[bytes, float]:
        """The contents, and when they were last changed."""
        descriptor = self.open(path, limit)
        try:
            status = os.fstat(descriptor)
            return _contents(descriptor, min(limit, status.st_size)), status.st_mtime
        finally:
            os.close(descriptor)

    def source(self, path: str, limit: int) -> tuple[bytes, float]:
        """Read as ``read`` does a Python source, whose lines are shown: where nobody vouches for it, it must belong."""
        if not self._source_belongs(path):
            raise PermissionError(errno.EACCES, "nothing proves that this source is the core's own", path)
        return self.read(path, limit)

    def withholds(self, path: str) -> bool:
        """``source`` refuses this path because nobody vouches for it."""
        return path.startswith("/") and not self._source_belongs(path)

    def image(self, path: str, machine: int | None = None) -> ElfImage:
        """The ELF file. Raises SymbolFileError, no OSError."""
        return ElfImage.of(path, lambda: self.open(path, LARGEST_LIBRARY), machine)

    def status(self, path: str) -> os.stat_result:
        """The answer of stat(2); nothing is opened."""
        inside = self._inside(path)
        return self._as_user(lambda paths: _status(paths.name(inside)))

    def exists(self, path: str) -> bool | None:
        """True if the process would find a file there; None where that cannot be known."""
        try:
            self.status(path)
        except FileNotFoundError:
            return False
        except OSError:
            return None
        return True

    def names(self, folder: str) -> list[str]:
        inside = self._inside(folder)
        descriptor = self._as_user(lambda paths: _reopened(paths.name(inside), _FOLDER))
        try:
            return os.listdir(descriptor)[:_MOST_NAMES]  # noqa: PTH208 - of a descriptor
        finally:
            os.close(descriptor)

    def _as_user(self, function: Callable[[RootedPaths], Answer]) -> Answer:
        paths, acting = self._paths, self._acting
        return acting.run(lambda: function(paths)) if acting else function(paths)

    @cached_property
    def _paths(self) -> RootedPaths:
        """The root itself is opened with our own rights."""
        return RootedPaths(self.root or "/")

    @cached_property
    def _acting(self) -> ActingUser | None:
        return self._user()


class _NoFiles(ForeignFiles):
    """There is none: nothing of this machine is asked."""

    vouched = False

    def _as_user(self, function: Callable[[RootedPaths], Answer]) -> Answer:  # noqa: ARG002
        raise FileNotFoundError(errno.ENOENT, "a recording's files are in the recording")


def linked_image(link: str, machine: int | None = None) -> ElfImage:
    """The ELF file that a link of the kernel leads to: /proc/PID/exe, /proc/PID/map_files/RANGE. It is the very file
    that the process has mapped, and its user has not always the right to open it so. Raises SymbolFileError."""
    return ElfImage.of(link, lambda: _opened(os.open(link, os.O_PATH | os.O_CLOEXEC), LARGEST_LIBRARY), machine)


def process_root(pid: int) -> str:
    """The root of a local process as we reach it: "" where it sees the same files as we do, else /proc/PID/root."""
    root = f"/proc/{pid}/root"
    try:
        same_mounts = os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt")  # noqa: PTH121
        return "" if same_mounts and os.path.samefile(root, "/") else root  # noqa: PTH121
    except OSError:
        return root


def _acting_user(pid: int) -> ActingUser | None:
    """A thread with the rights of the process's user; None where we have them, or less: only root can take on
    others."""
    if os.geteuid() != 0:
        return None
    rights = rights_of(pid)
    return ActingUser(rights) if rights.uid else None


def _opened(named: int, limit: int) -> int:
    """A descriptor for reading the regular file that ``named`` (O_PATH, closed here) is of. Raises OSError."""
    status = os.fstat(named)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return _reopened(named, _NEVER_WAIT)
    os.close(named)
    if stat.S_ISREG(status.st_mode):
        raise OSError(errno.EFBIG, f"larger than {limit} bytes")
    raise OSError(errno.EINVAL, "no regular file")


def _reopened(named: int, how: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{named}", how)
    finally:
        os.close(named)


def _status(named: int) -> os.stat_result:
    try:
        return os.fstat(named)
    finally:
        os.close(named)


def _contents(descriptor: int, size: int) -> bytes:
    """No more than the file had when it was opened: what grows meanwhile has no end."""
    pieces = []
    while size > 0 and (piece := os.read(descriptor, size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
