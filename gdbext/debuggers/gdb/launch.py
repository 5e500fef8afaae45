"""How scripts/dispatch starts a gdb for one command. Imports no gdb: this runs outside of it."""

from __future__ import annotations

import os

from gdbext.debuggers.base import Launch
from gdbext.errors import TargetError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NO_SYMBOLS = (
    "--readnever",
    "-iex", "set sysroot /nonexistent",
    "-iex", "set auto-solib-add off",
    "-iex", "set libthread-db-search-path /nonexistent",
)  # fmt: skip
"""Keeps gdb from reading any file of the target: attaching to torch takes 10 ms so, instead of 2.4 s.

Without a program file it also needs no libthread_db; it finds the threads in /proc.
"""
LIVE_PROGRAM = (
    "--readnever",
    "-iex", "set auto-solib-add off",
    "-iex", "set libthread-db-search-path /nonexistent",
)  # fmt: skip
"""The same for a program that gdb starts for a live command; it needs the program's file."""
QUIET = (
    "-iex", "set debuginfod enabled off",
    "-iex", "set auto-load no",
    "-iex", "set confirm off",
    "-iex", "set pagination off",
    "-iex", "set print thread-events off",
)  # fmt: skip


class GdbLaunch(Launch):
    """gdb in batch mode, without the user's settings and with no symbols that it does not need."""

    name = "gdb"
    when_silent = "it may lack Python (gdb -ex 'python 1')"

    def find(self) -> str:
        """The gdb of $GDB or of $PATH. Raises TargetError with how to install one."""
        wanted = os.environ.get("GDB") or "gdb"
        folders = [""] if "/" in wanted else os.environ.get("PATH", os.defpath).split(os.pathsep)
        for folder in folders:
            path = os.path.join(folder, wanted)  # noqa: PTH118
            if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112
                return path
        raise TargetError(
            f"gdb was not found ({wanted})",
            why="it is not installed, or not in $PATH",
            help="apt-get install gdb   or   dnf install gdb;   or use --debugger none, which needs no debugger at all",
        )

    def arguments(self, code: str, core: str | None, program: Sequence[str], live: bool) -> list[str]:
        """gdb may read what symbols it likes only of a program in which it waits for a crash."""
        what = [] if core is None else ["-c", os.path.abspath(core)]  # noqa: PTH100
        symbols = NO_SYMBOLS if not program else LIVE_PROGRAM if live else ()
        started = ["--args", *program] if program else []
        return [*what, "-nx", "-q", "-batch", *QUIET, *symbols, "-ex", f"python {code}", *started]

    def said(self, output: str) -> str:
        """Without its notes on every thread."""
        return "\n".join(line for line in output.splitlines() if line.strip() and not line.startswith("[New LWP"))


def launch() -> Launch:
    """gdb's."""
    return GdbLaunch()
