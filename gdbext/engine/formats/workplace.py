"""A private folder beside the results, in which programs write files by name; complete ones are moved to the results.

The folder of results may be another user's, who can make links under guessable names there, and change files between
their writing and their reading.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from gdbext.engine.formats import whole_file
from gdbext.engine.formats.whole_file import PRIVATE
from gdbext.errors import TargetError

_ROOM = 4 << 20  # bytes; most recordings have fewer


class Workplace:
    """A private folder inside ``folder``, which is created if missing; close() deletes it. A context manager."""

    def __init__(self, folder: str) -> None:
        """Raises TargetError if nothing can be written there."""
        self._fds: list[int] = []
        self._shown = folder
        try:
            self._folder = whole_file.open_folder(folder, make=True)
            self._fds.append(self._folder)
            whole_file.sweep(self._folder)
            self._name, self._inside = self._make()
            self._fds.append(self._inside)
        except OSError as error:
            self.close()
            raise TargetError(f"cannot write to {folder}: {error.strerror}", help="choose another --save") from error

    def _make(self) -> tuple[str, int]:
        """Make the private folder; returns its name and fd. It is locked, so that the next command knows whether this
        one was killed, and deletes it. Raises OSError."""
        for _ in range(whole_file.TRIES):
            name = whole_file.hidden_name()
            os.mkdir(name, 0o700, dir_fd=self._folder)
            try:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                inside = os.open(name, flags, dir_fd=self._folder)
            except FileNotFoundError:  # another command, which found it before it was locked, has deleted it
                continue
            if os.fstat(inside).st_uid != os.geteuid() or os.listdir(inside):  # noqa: PTH208
                os.close(inside)  # exchanged, or on a disk that root has no rights on
                raise OSError(errno.EPERM, "files made there belong to another user")
            if whole_file.lock(inside):
                return name, inside
            os.close(inside)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    @property
    def path(self) -> str:
        """A path of the folder that is valid while this process lives, even if folders above are renamed."""
        return f"/proc/{os.getpid()}/fd/{self._inside}"

    def enter(self) -> None:
        """Make the folder the current one of this process."""
        os.fchdir(self._inside)

    def create(self, name: str) -> int:
        """Make an empty file in the folder, in place of one with that name; returns its fd. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._inside)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, PRIVATE, dir_fd=self._inside)

    def write(self, name: str, text: str) -> None:
        """Write a new file in the folder. Raises OSError."""
        with open(self.create(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name: str) -> str:
        """The text of a file in the folder. Raises OSError."""
        with open(name, errors="replace", opener=self._open) as file:
            return file.read()

    def data(self, name: str) -> bytes:
        """The bytes of a file in the folder, b"" if it cannot be read."""
        try:
            with open(name, "rb", opener=self._open) as file:
                return file.read()
        except OSError:
            return b""

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=self._inside)

    def check_room(self) -> None:
        """Raises TargetError if the disk, or the user's quota, is so full that the files of an inspection may not
        fit."""
        try:
            made = self.create("room")
            try:
                os.posix_fallocate(made, 0, _ROOM)
            finally:
                os.close(made)
                os.unlink("room", dir_fd=self._inside)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                what = f"{error.strerror}: less than {_ROOM >> 20} MB are free in {self._shown}"
                why = "an inspection writes its files there first"
                raise TargetError(what, why=why, help="free some space, or choose another folder") from error

    def publish(self, name: str, final: str = "") -> None:
        """Move a file to the results, as ``final`` (default: the same name), readable by its owner only, in place of a
        file or link of that name. Raises OSError."""
        os.chmod(name, PRIVATE, dir_fd=self._inside)
        os.rename(name, final or name, src_dir_fd=self._inside, dst_dir_fd=self._folder)

    def close(self) -> None:
        """Delete the folder and its unpublished files; idempotent."""
        if len(self._fds) == 2:
            with suppress(OSError):
                whole_file.delete_folder(self._name, self._folder, self._inside)
        while self._fds:
            os.close(self._fds.pop())

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
