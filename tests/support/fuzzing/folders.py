"""Where the campaign keeps what it makes."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

KEPT = Path(__file__).resolve().parents[3] / "build" / "fuzz"
"""Cores and programs: they are made once, so that a seed means the same again."""


def kept() -> Path:
    """The folder of what stays."""
    KEPT.mkdir(parents=True, exist_ok=True)
    return KEPT


@cache
def _all() -> Path:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="gdbext-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def prepare() -> None:
    """Make the folder of all processes that are forked from this one, which goes with this one."""
    _all()


def scratch() -> Path:
    """A folder of this process, in memory where there is such a thing."""
    folder = _all() / str(os.getpid())
    folder.mkdir(exist_ok=True)
    return folder


def own_cache() -> Path:
    """The folder that takes the place of the user's cache in this process."""
    folder = scratch() / "cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder
