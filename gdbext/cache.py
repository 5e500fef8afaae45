"""The user's cache folder, which holds symbol indexes, layouts and compiled Python files, and checks of who can change
a path.

The cache's contents are trusted, and some are executed: no other user may be able to put anything there. A file is
trusted if only we and root can change or replace it, which every folder and every link on its path decides. The
launcher imports this module: it imports little.
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
    """(the path without links, the first file or folder on it that others may change, "" if there is none). Others are
    users not in ``owners`` and groups not in ``groups`` (None: any group may). Raises OSError."""
    pending, resolved, links = _reversed_names(os.path.abspath(path)), "/", 0  # noqa: PTH100
    changeable = "" if _only_they_can_change(os.lstat("/"), owners, groups) else "/"
    while pending:
        name = pending.pop()
        if name == "..":
            resolved = os.path.dirname(resolved)  # noqa: PTH120
            continue
        entry = f"{resolved.rstrip('/')}/{name}"
        status = os.lstat(entry)
        if not _only_they_can_change(status, owners, groups):
            changeable = changeable or entry
        if not stat.S_ISLNK(status.st_mode):
            resolved = entry
            continue
        links += 1
        if links > 40:  # as many as the kernel follows (path_resolution(7))
            raise OSError(f"too many links: {path}")
        target = os.readlink(entry)  # noqa: PTH115
        resolved = "/" if target.startswith("/") else resolved
        pending += _reversed_names(target)
    return resolved, changeable


def _reversed_names(path: str) -> list[str]:
    """The names in a path, the last first: a stack of those that are still to be followed."""
    return [name for name in path.split("/") if name not in ("", ".")][::-1]


def is_ours(path: str) -> bool:
    """True if only we and root can have made the file or can change it; False if it does not exist."""
    return _is_safe(path, (0, os.geteuid()), (0, os.getegid()) if os.geteuid() else (0,))


def _is_safe(path: str, owners: Collection[int], groups: Collection[int] | None) -> bool:
    """True if the file exists, and only these users and groups can change it, as in ``resolve``."""
    try:
        return not resolve(path, owners, groups)[1]
    except OSError:
        return False


def find_program(name: str) -> str | None:
    """The path of the program of that name or path, None if there is none. $PATH's relative folders are skipped, and
    for root all folders that others can change."""
    if "/" in name:
        return name if _is_program(name) else None
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = f"{folder}/{name}"
        # groups that may write there are the system's choice: /usr/local is staff's on Debian
        if folder.startswith("/") and _is_program(path) and (os.geteuid() or _is_safe(path, (0,), None)):
            return path
    return None


def program_command(words: Sequence[str]) -> list[str]:
    """The command line ``words``, its program replaced by the program's path. Raises FileNotFoundError."""
    path = find_program(words[0])
    if path is None:
        raise FileNotFoundError(f"there is no program {words[0]}")
    return [path, *words[1:]]


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)  # noqa: PTH113


def _only_they_can_change(status: os.stat_result, owners: Collection[int], groups: Collection[int] | None) -> bool:
    """True if only users ``owners`` and groups ``groups`` (None: any) can change the file or replace files in it."""
    if status.st_uid not in owners:
        return False
    if stat.S_ISLNK(status.st_mode):
        return True
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return True  # a file in there can only be replaced by its owner, who is checked next
    by_group = status.st_mode & stat.S_IWGRP and groups is not None and status.st_gid not in groups
    return not (by_group or status.st_mode & stat.S_IWOTH)


def file_key(status: os.stat_result) -> str:
    """The key for data about an opened file in the cache: no other file has it, nor has this file after a change
    (another file can contain the same build-id). "" if nothing may be kept: we are root, and others can change it."""
    if os.geteuid() == 0 and not _only_they_can_change(status, (0,), (0,)):
        return ""
    return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_ctime_ns:x}-{status.st_size:x}"


def cache_folder() -> str:
    """$XDG_CACHE_HOME/gdbext, by default ~/.cache/gdbext; always an absolute path."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # the XDG specification: relative paths are to be ignored
        home = os.environ.get("HOME", "")
        base = f"{home if home.startswith('/') else ''}/.cache"
    return f"{base}/gdbext"


def may_fill(folder: str) -> bool:
    """True if the folder is ours or we can create it, and only we and the system can put anything there. False for root
    with the caller's HOME (sudo -E), where it would leave a cache that its owner cannot use."""
    user = os.geteuid()
    try:
        _real_path(folder, user)
    except FileNotFoundError:
        # We can create it: the nearest folder is ours, or, unless we are root, the system's.
        path = os.path.realpath(folder)
        nearest = next(_existing_folders(path))
        return (nearest.st_uid == user or user != 0) and _is_closed_path(path, user)
    except OSError:
        return False
    return True


def open_ours(path: str) -> int:
    """Open a cached file and return its fd. Raises OSError if there is none, or others can change it."""
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
    """The real path of a folder that only ``user`` can change. Raises OSError if others can, or there is none."""
    path = os.path.realpath(folder)
    status = os.stat(path)  # noqa: PTH116 - pathlib takes 10 ms to import
    if status.st_uid != user or status.st_mode & stat.S_IWOTH or not _is_closed_path(path, user):
        raise PermissionError(f"{folder} is not ours alone")
    return path


def _is_closed_path(path: str, user: int) -> bool:
    """True if only ``user`` and the system can replace files in any existing folder on the path."""
    if user == 65534:  # "nobody": files of any user whom this user namespace does not know appear to be owned by it
        return False
    # a group may be the user's own: many systems give each user one, of the same number
    owners, groups = (user, system_user()), (0, user)
    return all(_only_they_can_change(folder, owners, groups) for folder in _existing_folders(path))


def _existing_folders(path: str) -> Iterator[os.stat_result]:
    """The existing folders on the path, the innermost first."""
    while True:
        with suppress(OSError):
            yield os.stat(path)  # noqa: PTH116
        if path == "/":
            return
        path = os.path.dirname(path)  # noqa: PTH120


def system_user() -> int:
    """The id of the user who owns the system's files: root's, or what root is mapped to in a user namespace."""
    return os.stat("/").st_uid  # noqa: PTH116
