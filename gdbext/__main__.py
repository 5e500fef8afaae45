"""``python -m gdbext`` and the installed command ``gdbext``: the same as scripts/dispatch."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn


def run() -> NoReturn:
    """Run the launcher with this process's arguments, then exit with its status."""
    # not at the top: with `python -m` nothing is imported until sys.path is put right below
    from gdbext.engine.targets.budget import raise_gc_threshold

    raise_gc_threshold()
    from gdbext.hosts.cli import launcher

    launcher.run()


if __name__ == "__main__":
    # `python -m` searches the current folder first, which may be another user's: nothing more is imported from there
    sys.path[:] = [folder for folder in sys.path if folder not in ("", os.getcwd())]  # noqa: PTH109
    run()
