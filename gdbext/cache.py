"""The user's folder for what can always be made again: symbol indexes, layouts, compiled Python files.

What is in there is believed, and some of it is executed: so nobody else may be able to put anything there, on the whole
way from the root. Imports next to nothing: the launcher asks here, too.

A file is trusted if nobody but us and root can change it or put another in its place. Every folder and every link on
the way counts, for whoever owns one of them decides what the path means.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_LINKS = 40
"""Most links on one way: as many as the kernel follows (path_resolution(7))."""


def resolve(path: str, owners: Collection[int], groups: Collection[int] | None = (0,)) -> tuple[str, str]:
    """The path without links, and the first place on the way there that others may change, "" where there is none.

    Others are all but ``owners``, and the members of groups but ``groups`` (None: any group will do). Raises OSError.
    """
    pending, place, strange, links = _parts(os.path.abspath(path)), "/", "", 0  # noqa: PTH100
    strange = "" if _is_of(os.lstat("/"), owners, groups) else "/"
    while pending:
        name = pending.pop()
        if name == "..":
            place = os.path.dirname(place)  # noqa: PTH120
            continue
        at = f"{place.rstrip('/')}/{name}"
        status = os.lstat(at)
        if not _is_of(status, owners, groups):
            strange = strange or at
        if not stat.S_ISLNK(status.st_mode):
            place = at
            continue
        links += 1
        if links > _LINKS:
            raise OSError(f"too many links: {path}")
        target = os.readlink(at)  # noqa: PTH115
        place = "/" if target.startswith("/") else place
        pending += _parts(target)
    return place, strange


def is_ours(path: str) -> bool:
    """Nobody but us and root can have put it there, or can change it. False for what is not there."""
    try:
        return not resolve(path, (0, os.geteuid()), (0, os.getegid()) if os.geteuid() else (0,))[1]
    except OSError:
        return False


def find_program(name: str) -> str | None:
    """The program of that name or path; None where there is none.

    Never one of the folder that we happen to be in; and where we are root, of $PATH only folders that are root's.
    """
    if "/" in name:
        return name if _is_program(name) else None
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = f"{folder}/{name}"
        if folder.startswith("/") and _is_program(path) and (os.geteuid() or _is_roots(path)):
            return path
    return None


def located(words: Sequence[str]) -> list[str]:
    """The command line with the path of its program. Raises FileNotFoundError."""
    path = find_program(words[0])
    if path is None:
        raise FileNotFoundError(f"there is no program {words[0]}")
    return [path, *words[1:]]


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)  # noqa: PTH113


def _is_roots(path: str) -> bool:
    """Groups that may write there are the system's choice: /usr/local is staff's on Debian."""
    try:
        return not resolve(path, (0,), None)[1]
    except OSError:
        return False


def _parts(path: str) -> list[str]:
    """The names in a path, the last one first."""
    return [name for name in path.split("/") if name not in ("", ".")][::-1]


def _is_of(status: os.stat_result, owners: Collection[int], groups: Collection[int] | None) -> bool:
    if status.st_uid not in owners:
        return False
    if stat.S_ISLNK(status.st_mode):
        return True
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return True  # what is in there can only be replaced by its owner, who is looked at next
    by_group = status.st_mode & stat.S_IWGRP and groups is not None and status.st_gid not in groups
    return not (by_group or status.st_mode & stat.S_IWOTH)


def file_key(status: os.stat_result) -> str:
    """The name by which what was found in an opened file is kept: the kernel chose it, and the file has another one
    once it is changed, so that no other file has it. "" where nothing is kept: we are root, and the file is not.

    What the file says of itself (its build-id) is a copy's, too, in which the rest says something else.
    """
    if os.geteuid() == 0 and not _is_of(status, (0,), (0,)):
        return ""
    return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_ctime_ns:x}-{status.st_size:x}"


_GROUP, _OTHERS, _STICKY = 0o020, 0o002, 0o1000
"""Bits of st_mode: write for the group, write for others, sticky."""
_KIND, _REGULAR = 0o170000, 0o100000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOBODY = 65534
"""The user as whom files appear whose owner this user namespace does not know: nobody's own they need not be."""


def cache_folder() -> str:
    """$XDG_CACHE_HOME/gdbext, by default ~/.cache/gdbext. Never relative to where we happen to run."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # the XDG specification: relative paths are to be ignored
        home = os.environ.get("HOME", "")
        base = f"{home if home.startswith('/') else ''}/.cache"
    return f"{base}/gdbext"


def may_fill(folder: str) -> bool:
    """True if the folder is ours, or can be made by us, and nobody else can put anything there.

    What another user can change must not be loaded; and root with the caller's HOME (sudo -E) must not leave behind
    a cache that its owner cannot use.
    """
    user = os.geteuid()
    try:
        _place(folder, user)
    except FileNotFoundError:
        return _may_make(os.path.realpath(folder), user)
    except OSError:
        return False
    return True


def open_ours(path: str) -> int:
    """A descriptor of a cached file, to be read. Raises OSError where there is none, or it is not ours alone."""
    folder, _, name = path.rpartition("/")
    descriptor = os.open(f"{_place(folder, os.geteuid())}/{name}", _READ)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & _KIND != _REGULAR:
        os.close(descriptor)
        raise PermissionError(f"{path} is not our file")
    return descriptor


@lru_cache(maxsize=16)
def _place(folder: str, user: int) -> str:
    """The real path of a folder that is ours alone, which it stays. Raises OSError where it is not, or not there."""
    place = os.path.realpath(folder)
    status = os.stat(place)  # noqa: PTH116 - pathlib takes 10 ms to import
    if status.st_uid != user or status.st_mode & _OTHERS or not _is_closed_way(place, user):
        raise PermissionError(f"{folder} is not ours alone")
    return place


def _may_make(place: str, user: int) -> bool:
    """A folder that is not there can be made, and will be ours: the nearest one that is there is ours, or, unless we
    are root, the system's."""
    _, nearest = next(_existing(place))
    return (nearest.st_uid == user or user != 0) and _is_closed_way(place, user)


def _is_closed_way(place: str, user: int) -> bool:
    return user != _NOBODY and all(_is_closed(each, user) for _, each in _existing(place))


def _existing(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """The folders on the way to ``path`` that are there, the innermost first."""
    while True:
        with suppress(OSError):
            yield path, os.stat(path)  # noqa: PTH116
        if path == "/":
            return
        path = os.path.dirname(path)  # noqa: PTH120


def _is_closed(folder: os.stat_result, user: int) -> bool:
    """Nobody but ``user`` and the system can exchange what we make in there."""
    if folder.st_uid not in (user, _system()):
        return False
    if folder.st_mode & _STICKY:
        return True
    return not folder.st_mode & _OTHERS and (not folder.st_mode & _GROUP or _is_of_one(folder.st_gid, user))


def _is_of_one(group: int, user: int) -> bool:
    """The system's group, or the user's own: many systems give each user one, of the same number."""
    return group in (0, user)


def _system() -> int:
    """The user that the system's files belong to: root, or, in a user namespace, whatever root is shown as."""
    return os.stat("/").st_uid  # noqa: PTH116
