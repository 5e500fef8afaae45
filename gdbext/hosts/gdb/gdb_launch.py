"""Start a gdb for one command of scripts/dispatch. Imports no gdb: this runs outside of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.errors import TargetError
from gdbext.hosts.debugger.base_debugger import DebuggerLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_SYMBOLS = (
    "--readnever",
    "-iex",
    "set sysroot /nonexistent",
    "-iex",
    "set auto-solib-add off",
    "-iex",
    "set libthread-db-search-path /nonexistent",
)
"""Keeps gdb from reading any file of the target: attaching to torch takes 10 ms so, instead of 2.4 s.

Without a program file it also needs no libthread_db; it finds the threads in /proc.
"""
LIVE_PROGRAM = (
    "--readnever",
    "-iex",
    "set auto-solib-add off",
    "-iex",
    "set libthread-db-search-path /nonexistent",
)
"""The same for a program that gdb starts for a live command; it needs the program's file."""
QUIET = (
    "-iex",
    "set debuginfod enabled off",
    "-iex",
    "set auto-load no",
    "-iex",
    "set confirm off",
    "-iex",
    "set pagination off",
    "-iex",
    "set print thread-events off",
)


class GdbLaunch(DebuggerLaunch):
    """gdb in batch mode, without the user's settings and with no symbols that it does not need."""

    name = "gdb"
    no_result_reason = "it may lack Python (gdb -ex 'python 1')"

    def find(self) -> str:
        """The gdb of $GDB or of $PATH. Raises TargetError with how to install one."""
        wanted = os.environ.get("GDB") or "gdb"
        path = find_program(wanted)
        if path is not None:
            return path
        raise TargetError(
            f"gdb was not found ({wanted})",
            why="it is not installed, or not in $PATH",
            help="apt-get install gdb   or   dnf install gdb;   or use --debugger none, which needs no debugger at all",
        )

    def arguments(self, code: str, core: str, program: Sequence[str], live: bool) -> list[str]:
        """gdb may read what symbols it likes only of a program in which it waits for a crash."""
        what = ["-c", os.path.abspath(core)] if core else []  # noqa: PTH100
        symbols = NO_SYMBOLS if not program else LIVE_PROGRAM if live else ()
        started = ["--args", *program] if program else []
        return [*what, "-nx", "-q", "-batch", *QUIET, *symbols, "-ex", f"python {code}", *started]

    def relevant_output(self, output: str) -> str:
        """The debugger's output without its notes on every thread."""
        return "\n".join(line for line in output.splitlines() if line.strip() and not line.startswith("[New LWP"))


def launch() -> DebuggerLaunch:
    """Give the description of how gdb is started."""
    return GdbLaunch()
