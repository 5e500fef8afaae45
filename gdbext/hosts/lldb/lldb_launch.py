"""The command line of an LLDB for one command of scripts/dispatch. Imports no lldb: this runs outside of it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.errors import TargetError
from gdbext.hosts.debugger.base_debugger import DebuggerLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence

_OTHERS = "name another lldb in $LLDB, or use --debugger none, which needs no debugger"


class LldbLaunch(DebuggerLaunch):
    """lldb in batch mode, without the user's settings and with no symbols that it does not need."""

    name = "lldb"
    noise = "(lldb) "
    no_result_reason = "it may lack Python (lldb -b -o 'script 1')"
    packages = ("lldb-19", "lldb")

    def other_executable(self) -> str | None:
        """The path of the newest lldb-VERSION in $PATH; None without one."""
        names: set[str] = set()
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
            with suppress(OSError):
                names.update(name for name in os.listdir(folder) if re.fullmatch(r"lldb-\d+", name))  # noqa: PTH208
        newest_first = sorted(names, key=lambda name: -int(name[len("lldb-") :]))
        return next(filter(None, map(find_program, newest_first)), None)

    def arguments(self, code: str, core: str, program: Sequence[str], live: bool) -> list[str]:
        """``core`` is loaded by ``code``. LLDB reads all symbols only for a program that it runs until it crashes; its
        other look-ups in every library depend on its version (lldb_debugger.py). It asks no questions, and runs no
        scripts of the current folder, or beside the libraries of the process."""
        del core
        values = [
            *("use-color false", "interpreter.prompt-on-quit false", "target.load-cwd-lldbinit false"),
            "target.load-script-from-symbol-file false",
        ]
        if live or not program:
            values += ["symbols.enable-external-lookup false", "plugin.jit-loader.gdb.enable off"]
            values += ["target.preload-symbols false"]
        settings = [word for value in values for word in ("-O", f"settings set {value}")]
        started = ["--", *program] if program else []
        return ["--no-lldbinit", "-b", "-Q", *settings, "-o", f"script {code}", *started]

    def known_failure(self, output: str) -> TargetError | None:
        """The error of an LLDB without Python, or with one that does not find LLDB's own module."""
        if "script interpreter unavailable" in output:  # CommandObjectScript.cpp
            return TargetError(
                "this lldb has no embedded Python",
                why="it was built without Python",
                help=f"install one that has it (apt-get install lldb-19), or {_OTHERS}",
            )
        failure = re.search(r"(ModuleNotFoundError|ImportError|NameError): .*\b_?lldb\b.*", output)
        if failure:
            return TargetError(
                "the Python inside this lldb cannot load LLDB's own module",
                why=f"{failure.group()}: its package (python3-lldb-VERSION) is not installed, or not where this lldb "
                "looks (Debian 12's lldb-14)",
                help=f"apt-get install lldb-16 or later, or {_OTHERS}",
            )
        return None


launch = LldbLaunch
