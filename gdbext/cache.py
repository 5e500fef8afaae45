"""The user's folder for what can always be made again: symbol indexes, layouts, compiled Python files.

Imports next to nothing: the launcher asks here, too.
"""

from __future__ import annotations

import os


def cache_folder() -> str:
    """$XDG_CACHE_HOME/gdbext, by default ~/.cache/gdbext. Never relative to where we happen to run."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # the XDG specification: relative paths are to be ignored
        home = os.environ.get("HOME", "")
        base = f"{home if home.startswith('/') else ''}/.cache"
    return f"{base}/gdbext"


def may_fill(folder: str) -> bool:
    """We may write there, and nobody else put it there.

    What another user can change must not be loaded; and root with the caller's HOME (sudo -E) must not leave behind
    a cache that its owner cannot use.
    """
    nearest = folder
    while True:
        try:
            owner = os.stat(nearest).st_uid  # noqa: PTH116 - pathlib takes 10 ms to import
            break
        except OSError:
            parent = os.path.dirname(nearest)  # noqa: PTH120
            if parent == nearest:
                return False
            nearest = parent
    if nearest == folder:
        return owner == os.geteuid()
    return owner == 0 or os.geteuid() != 0
