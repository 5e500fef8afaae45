"""The steps of a path that is walked name by name, each from the fd of the folder before it."""

from __future__ import annotations

import errno
import os

MAX_LINKS = 40
"""Symbolic links in one path, as the kernel has it (MAXSYMLINKS, linux/namei.h)."""


class PathSteps:
    """The names that are left of a path. Links are followed by putting what they say in front of the rest."""

    def __init__(self, path: str) -> None:
        self._left = path.split("/")[::-1]
        self._links = 0

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def are_empty(self) -> bool:
        """Nothing but slashes is left: the name that was taken last is the end of the path."""
        return not any(self._left)

    def take(self) -> str:
        """Take the next name; "" between two slashes."""
        return self._left.pop()

    def follow(self, target: str) -> bool:
        """Go where a link leads; True where that begins at the root. Raises OSError (ELOOP)."""
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        self._left += target.split("/")[::-1]
        return target.startswith("/")
