"""Where the campaign keeps what it makes."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


def kept() -> Path:
    """Cores and programs are made once, so that a seed means the same again."""
    folder = Path(__file__).resolve().parents[3] / "build" / "fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def everything() -> Path:
    """The folder, in memory where there is such a thing, of this process and all that are forked from it."""
    memory, pid = Path("/dev/shm"), os.getpid()
    folder = Path(tempfile.mkdtemp(prefix="gdbext-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == pid else None)
    return folder


def scratch() -> Path:
    folder = everything() / str(os.getpid())
    folder.mkdir(exist_ok=True)
    return folder


def own_cache() -> Path:
    """The folder that takes the place of the user's cache in this process."""
    folder = scratch() / "cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder
