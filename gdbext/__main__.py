"""``python -m gdbext`` and the installed command ``gdbext``: the same as scripts/dispatch."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn


def run() -> NoReturn:
    """Run the launcher with this process's arguments, and end this process with its exit status."""
    # not at the top: with `python -m` nothing is imported until sys.path is put right below
    from gdbext.engine.targets.budget import raise_gc_threshold

    raise_gc_threshold()
    from gdbext.hosts.cli import launcher

    launcher.run()


if __name__ == "__main__":
    # `python -m` looks first in the current folder, which may be another user's: no more is imported from there
    sys.path[:] = [place for place in sys.path if place not in ("", os.getcwd())]  # noqa: PTH109
    run()
