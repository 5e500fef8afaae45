"""The one reader of files of /proc, up to a limit: the process itself sets the length of many of them.

PR_SET_MM_MAP (prctl(2)) needs no privilege and makes ``environ`` or ``cmdline`` as long as the address space; mappings,
mounts, threads, locks and watches are as many as the process wants. ``tests/unit/test_file_law.py`` finds other ways
of reading such a file.
"""

from __future__ import annotations

import errno
import os

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
    try:
        data = os.read(descriptor, min(limit, _STEP))
        parts, room = [data], limit - len(data)
        while data and room > 0:
            data = os.read(descriptor, min(room, _STEP))
            parts.append(data)
            room -= len(data)
    finally:
        os.close(descriptor)
    return parts[0] if len(parts) <= 2 and not data else b"".join(parts)


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
