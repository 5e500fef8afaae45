"""The user's folder for what can always be made again: symbol indexes, layouts, compiled Python files.

Its contents are believed, and some of it is executed: so no other user may be able to put anything there, on the whole
path from the root. A file is trusted if nobody but us and root can change it or put another in its place: every folder
and every link on the path counts, since the owner of one of them decides what the path means. This module imports next
to nothing: the launcher uses it, too.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


def resolve(path: str, owners: Collection[int], groups: Collection[int] | None = (0,)) -> tuple[str, str]:
    """The path without links, and the first place on the way there that others may change, "" where there is none.

    Others are all but ``owners``, and the members of groups but ``groups`` (None: any group will do). Raises OSError.
    """
    pending, place, links = _names_in(os.path.abspath(path)), "/", 0  # noqa: PTH100
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
        if links > 40:  # as many as the kernel follows (path_resolution(7))
            raise OSError(f"too many links: {path}")
        target = os.readlink(at)  # noqa: PTH115
        place = "/" if target.startswith("/") else place
        pending += _names_in(target)
    return place, strange


def _names_in(path: str) -> list[str]:
    """The names in a path, the last one first."""
    return [name for name in path.split("/") if name not in ("", ".")][::-1]


def is_ours(path: str) -> bool:
    """True if nobody but us and root can have put it there, or can change it. False for what is not there."""
    return _is_safe(path, (0, os.geteuid()), (0, os.getegid()) if os.geteuid() else (0,))


def _is_safe(path: str, owners: Collection[int], groups: Collection[int] | None) -> bool:
    try:
        return not resolve(path, owners, groups)[1]
    except OSError:
        return False


def find_program(name: str) -> str | None:
    """The program of that name or path; None where there is none. Never one of the folder that we happen to be in; and
    where we are root, of $PATH only folders that are root's."""
    if "/" in name:
        return name if _is_program(name) else None
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = f"{folder}/{name}"
        # groups that may write there are the system's choice: /usr/local is staff's on Debian
        if folder.startswith("/") and _is_program(path) and (os.geteuid() or _is_safe(path, (0,), None)):
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


def _is_of(status: os.stat_result, owners: Collection[int], groups: Collection[int] | None) -> bool:
    if status.st_uid not in owners:
        return False
    if stat.S_ISLNK(status.st_mode):
        return True
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return True  # what is in there can only be replaced by its owner, who is checked next
    by_group = status.st_mode & stat.S_IWGRP and groups is not None and status.st_gid not in groups
    return not (by_group or status.st_mode & stat.S_IWOTH)


def file_key(status: os.stat_result) -> str:
    """The name by which what was read in an opened file is kept: the kernel chose it, and the file has another one
    once it is changed, so that no other file has it. "" where nothing is kept: we are root, and the file is not.

    What the file says of itself (its build-id) is a copy's, too, in which the rest says something else.
    """
    if os.geteuid() == 0 and not _is_of(status, (0,), (0,)):
        return ""
    return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_ctime_ns:x}-{status.st_size:x}"


_NOBODY = 65534
"""The user as whom files appear whose owner this user namespace does not know: they need not be of that user."""


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
        _real_path(folder, user)
    except FileNotFoundError:
        # It can be made, and will be ours: the nearest folder is ours, or, unless we are root, the system's.
        path = os.path.realpath(folder)
        nearest = next(_existing_folders(path))
        return (nearest.st_uid == user or user != 0) and _is_closed_path(path, user)
    except OSError:
        return False
    return True


def open_ours(path: str) -> int:
    """An fd of a cached file, to be read. Raises OSError where there is none, or it is not ours alone."""
    folder, _, name = path.rpartition("/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(f"{_real_path(folder, os.geteuid())}/{name}", flags)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise PermissionError(f"{path} is not our file")
    return fd


@lru_cache(maxsize=16)
def _real_path(folder: str, user: int) -> str:
    """The real path of a folder that is ours alone, which it stays. Raises OSError where it is not, or not there."""
    path = os.path.realpath(folder)
    status = os.stat(path)  # noqa: PTH116 - pathlib takes 10 ms to import
    if status.st_uid != user or status.st_mode & stat.S_IWOTH or not _is_closed_path(path, user):
        raise PermissionError(f"{folder} is not ours alone")
    return path


def _is_closed_path(path: str, user: int) -> bool:
    """Nobody but ``user`` and the system can exchange what we make there, in any folder on the path."""
    if user == _NOBODY:
        return False
    owners = (user, system_user())
    for folder in _existing_folders(path):
        if folder.st_uid not in owners:
            return False
        # a group is the system's, or the user's own: many systems give each user one, of the same number
        by_group = folder.st_mode & stat.S_IWGRP and folder.st_gid not in (0, user)
        if not folder.st_mode & stat.S_ISVTX and (folder.st_mode & stat.S_IWOTH or by_group):
            return False
    return True


def _existing_folders(path: str) -> Iterator[os.stat_result]:
    """The folders on the way to ``path`` that are there, the innermost first."""
    while True:
        with suppress(OSError):
            yield os.stat(path)  # noqa: PTH116
        if path == "/":
            return
        path = os.path.dirname(path)  # noqa: PTH120


def system_user() -> int:
    """The user that the system's files belong to: root, or, in a user namespace, whatever root is shown as."""
    return os.stat("/").st_uid  # noqa: PTH116
