"""``python -m gdbext`` and the installed command ``gdbext``: the same as scripts/dispatch."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the launcher with this process's arguments; its exit status."""
    from gdbext.cli import launcher

    return launcher.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
