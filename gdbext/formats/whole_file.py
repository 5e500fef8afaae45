"""A file that is whole, or not there: it gets its name when all of it is written."""

from __future__ import annotations

import contextlib
import errno
import os
from types import TracebackType

from gdbext.errors import TargetError


class WholeFile:
    """Written under another name in the same folder; keep() gives it its own. A context manager, which keeps what was
    written without an exception.

    ``descriptor`` is open until then. What is no regular file (a pipe, /dev/stdout) is written at once.
    """

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self.path = os.path.realpath(path)
        self._is_special = os.path.exists(self.path) and not os.path.isfile(self.path)  # noqa: PTH110, PTH113
        self._partial = self.path if self._is_special else f"{self.path}.{os.getpid()}.partial"
        how = 0 if self._is_special else os.O_CREAT | os.O_EXCL
        self.descriptor = os.open(self._partial, os.O_WRONLY | os.O_CLOEXEC | how, 0o666)

    def need(self, size: int) -> None:
        """So many bytes will be written. Raises TargetError where the disk has no room for them, OSError."""
        if self._is_special:
            return
        disk = os.fstatvfs(self.descriptor)
        free = disk.f_bavail * disk.f_frsize
        if size > free:
            raise TargetError(
                f"{self.path} would have {size} bytes, and its disk has room for {free}",
                why="an expanded tensor has more elements than memory",
                help="name a file on another disk; nothing was left behind",
            )

    def write(self, data: bytes) -> None:
        """All of it. Raises OSError."""
        left = memoryview(data)
        while left:
            left = left[os.write(self.descriptor, left) :]

    def keep(self) -> None:
        """It is whole. Raises OSError; nothing is left then."""
        try:
            if not self._is_special:
                os.fsync(self.descriptor)
                os.replace(self._partial, self.path)  # noqa: PTH105
                self._partial = ""
        finally:
            self.discard()

    def discard(self) -> None:
        """Leave what was there before, unless it was kept; idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if self._partial and not self._is_special:
            with contextlib.suppress(OSError):
                os.unlink(self._partial)  # noqa: PTH108
            self._partial = ""

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.keep()
        else:
            self.discard()


def write(path: str, data: bytes) -> None:
    """The whole file at once. Raises TargetError."""
    try:
        with WholeFile(path) as file:
            file.write(data)
    except OSError as error:
        raise cannot_write(path, error) from error


_REASONS = {
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "your share of its disk is used up",
    errno.ENOENT: "the folder does not exist",
    errno.ENOTDIR: "what should be its folder is a file",
    errno.EISDIR: "there is a folder of that name",
    errno.EACCES: "the folder belongs to somebody else, or is write-protected",
    errno.EPERM: "the folder does not permit it",
    errno.EROFS: "its disk is mounted read-only",
}


def cannot_write(path: str, error: OSError) -> TargetError:
    """The error for a file of the user's choice."""
    return TargetError(
        f"cannot write {path}: {error.strerror}",
        why=_REASONS.get(error.errno or 0, "the disk or the network that it is on failed"),
        help="name a file in a folder that you may write to, with room for it; nothing was left behind",
    )
