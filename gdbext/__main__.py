"""``python -m gdbext`` and the installed command ``gdbext``: the same as scripts/dispatch."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn


def main() -> int:
    """Run the launcher with this process's arguments; its exit status."""
    from gdbext.engine.terminal import typed_name
    from gdbext.hosts.cli import launcher

    return launcher.main(sys.argv[1:], typed_name(sys.argv[0]))


def run() -> NoReturn:
    """Run the launcher, and end this process with its exit status."""
    from gdbext.engine.targets.budget import raise_gc_threshold

    raise_gc_threshold()
    from gdbext.hosts.cli import launcher

    launcher.leave(main())


if __name__ == "__main__":
    # `python -m` looks first in the folder that we happen to be in, whoever's it is: no more is imported from there
    sys.path[:] = [place for place in sys.path if place not in ("", os.getcwd())]  # noqa: PTH109
    run()
