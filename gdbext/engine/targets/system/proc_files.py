"""The one reader of files of /proc, up to a limit: the process itself sets the length of many of them.

PR_SET_MM_MAP (prctl(2)) needs no privilege and makes ``environ`` or ``cmdline`` as long as the address space; mappings,
mounts, threads, locks and watches are as many as the process wants. ``tests/unit/test_file_law.py`` finds other ways
of reading such a file.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ONE = 1 << 20
"""Bytes of a file about one thing: ``status`` has the most, 65,536 groups (NGROUPS_MAX, linux/limits.h)."""
WORDS = 6 << 20
"""Bytes of ``cmdline`` or ``environ``: execve(2) takes no more of both (_STK_LIM / 4 * 3, fs/exec.c)."""
TABLE = 64 << 20
"""Bytes of a table: ``maps``, ``mountinfo``, ``/proc/locks``, ``net/tcp``."""
_STEP = 1 << 16
_LINE = 4096


def head(path: str, limit: int) -> bytes:
    """The first ``limit`` bytes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # open() is slower
    parts, room = [], limit
    try:
        while room > 0 and (data := os.read(descriptor, min(room, _STEP))):
            parts.append(data)
            room -= len(data)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def line(path: str) -> bytes:
    """The first 4,096 bytes of a file of one line, which the kernel gives in one piece (single_open, fs/seq_file.c).
    Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _LINE)
    finally:
        os.close(descriptor)


def read(path: str, limit: int | None = None) -> bytes:
    """The whole file; ``limit`` None: by its name. Raises OSError; EFBIG if it is longer."""
    if limit is None:
        limit = {"environ": WORDS, "cmdline": WORDS, "maps": TABLE}.get(path.rpartition("/")[2], ONE)
    data = head(path, limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes", path)
    return data


def text(path: str, limit: int | None = None) -> str:
    """The whole file, decoded as file names are. Raises OSError; EFBIG if it is longer."""
    return os.fsdecode(read(path, limit))


def file_text(path: str, limit: int = ONE) -> str:
    """The first ``limit`` bytes of a file of the kernel; "" if it cannot be read."""
    try:
        return head(path, limit).decode(errors="replace")
    except OSError:
        return ""


def folder_names(folder: str) -> list[str]:
    """The names in a folder of the kernel; [] if it cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - pathlib takes 10 ms to import
    except OSError:
        return []


def link_target(path: str) -> str:
    """The target of a link of the kernel; "" if it is none."""
    try:
        return os.readlink(path)  # noqa: PTH115 - as above
    except OSError:
        return ""


def all_fds(limit: int = 4096) -> Iterator[tuple[int, str]]:
    """(PID, fd) of the processes of this machine whose fds can be read, 4,096 at most; of each, ``limit`` fds."""
    for pid in [int(name) for name in folder_names("/proc") if name.isdecimal()][:4096]:
        for fd in folder_names(f"/proc/{pid}/fd")[:limit]:
            yield pid, fd


def status_values(text: str) -> dict[str, str]:
    """Name → value of the text of /proc/PID/status (proc_pid_status(5))."""
    return {name: value.strip() for name, colon, value in (row.partition(":") for row in text.split("\n")) if colon}


def status_fields(path: str) -> dict[str, str]:
    """Name → value of a status file; {} if it cannot be read."""
    return status_values(file_text(path))
