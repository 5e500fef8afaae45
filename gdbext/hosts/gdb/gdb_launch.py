"""The command line of a gdb for one command of scripts/dispatch. Imports no gdb: this runs outside of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
    packages = ("gdb", "gdb")

    def arguments(self, code: str, core: str, program: Sequence[str], live: bool) -> list[str]:
        """gdb reads symbols only for a program that it runs until it crashes. Otherwise it reads no file of the target:
        attaching to torch then takes 10 ms instead of 2.4 s. Without the program's file, which a live command needs, it
        finds the threads in /proc, without libthread_db."""
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
