"""The steps of a path that is walked name by name, each from the fd of the folder before it."""

from __future__ import annotations

import errno
import os

MAX_LINKS = 40  # symbolic links in one path, as the kernel has it (MAXSYMLINKS, linux/namei.h)


class PathSteps:
    """The remaining names of a path; following a link puts the names of its target in front of them."""

    def __init__(self, path: str) -> None:
        self._left = path.split("/")[::-1]
        self._links = 0

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def are_empty(self) -> bool:
        """True if only slashes are left: the name that take() returned last is the end of the path."""
        return not any(self._left)

    def take(self) -> str:
        """Take the next name; "" between two slashes."""
        return self._left.pop()

    def follow(self, target: str) -> bool:
        """Continue with a link's target; True if that is an absolute path. Raises OSError (ELOOP)."""
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        self._left += target.split("/")[::-1]
        return target.startswith("/")
