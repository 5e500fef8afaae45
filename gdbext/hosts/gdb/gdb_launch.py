"""The command line of a gdb for one command of scripts/dispatch. Imports no gdb: this runs outside of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.errors import TargetError
from gdbext.hosts.debugger.base_debugger import DebuggerLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence


def _settings(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("-iex", f"set {setting}")]


class GdbLaunch(DebuggerLaunch):
    """gdb in batch mode, without the user's settings and with no symbols that it does not need."""

    name = "gdb"
    noise = "[New LWP"
    no_result_reason = "it may lack Python (gdb -ex 'python 1')"

    def find(self) -> str:
        """The path of the gdb of $GDB or of $PATH. Raises TargetError with how to install one."""
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
        """gdb reads symbols only for a program that it runs until it crashes. Otherwise it reads no file of the target:
        attaching to torch then takes 10 ms instead of 2.4 s. Without a program file it also needs no libthread_db; it
        finds the threads in /proc. A live command needs the program's file."""
        loaded = ["-c", os.path.abspath(core)] if core else []  # noqa: PTH100
        settings = _settings(
            "debuginfod enabled off", "auto-load no", "confirm off", "pagination off", "print thread-events off"
        )
        if live or not program:
            settings += ["--readnever", *([] if program else _settings("sysroot /nonexistent"))]
            settings += _settings("auto-solib-add off", "libthread-db-search-path /nonexistent")
        started = ["--args", *program] if program else []
        return [*loaded, "-nx", "-q", "-batch", *settings, "-ex", f"python {code}", *started]


launch = GdbLaunch
