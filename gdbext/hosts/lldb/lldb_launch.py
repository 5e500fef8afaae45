"""Start an LLDB for one command of scripts/dispatch. Imports no lldb: this runs outside of it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.errors import TargetError
from gdbext.hosts.debugger.base_debugger import DebuggerLaunch

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_SYMBOLS = (
    "settings set symbols.enable-external-lookup false",
    "settings set plugin.jit-loader.gdb.enable off",
    "settings set target.preload-symbols false",
)
"""Keep LLDB from reading symbols that nobody has asked for. What else it looks up in every library when it attaches
depends on its version (lldb_batch.py)."""
QUIET = (
    "settings set use-color false",
    "settings set interpreter.prompt-on-quit false",
    "settings set target.load-cwd-lldbinit false",
    "settings set target.load-script-from-symbol-file false",
)
"""Neither asks anything nor runs what lies in the folder that we are in, or beside the libraries of the process."""
_VERSIONED = re.compile(r"lldb-(\d+)")
_ECHO = re.compile(r"^\(lldb\) ")

_NO_PYTHON = "script interpreter unavailable"
"""LLDB's words where it was built without Python (CommandObjectScript.cpp)."""
_CANNOT_LOAD = re.compile(r"(ModuleNotFoundError|ImportError|NameError): .*\b_?lldb\b.*")
OTHERS = "name another lldb in $LLDB, or use --debugger none, which needs no debugger"


class LldbLaunch(DebuggerLaunch):
    """lldb in batch mode, without the user's settings and with no symbols that it does not need."""

    name = "lldb"
    no_result_reason = "it may lack Python (lldb -b -o 'script 1')"

    def find(self) -> str:
        """The lldb of $LLDB or of $PATH, else the newest lldb-VERSION there. Raises TargetError with how to install
        one."""
        wanted = os.environ.get("LLDB") or "lldb"
        path = find_program(wanted)
        if path is not None:
            return path
        versioned = _versioned(os.environ.get("PATH", os.defpath).split(os.pathsep)) if wanted == "lldb" else []
        if versioned:
            return max(versioned)[1]
        raise TargetError(
            f"lldb was not found ({wanted})",
            why="it is not installed, or not in $PATH",
            help="apt-get install lldb-19   or   dnf install lldb;   or use --debugger none, which needs no debugger",
        )

    def arguments(self, code: str, core: str, program: Sequence[str], live: bool) -> list[str]:
        """``core`` is loaded by ``code``. LLDB may read what symbols it likes only of a program in which it waits for a
        crash."""
        del core
        symbols = NO_SYMBOLS if not program or live else ()
        settings = [word for line in (*QUIET, *symbols) for word in ("-O", line)]
        started = ["--", *program] if program else []
        return ["--no-lldbinit", "-b", "-Q", *settings, "-o", f"script {code}", *started]

    def relevant_output(self, output: str) -> str:
        """The debugger's output without the commands that it repeats."""
        return "\n".join(line for line in output.splitlines() if line.strip() and not _ECHO.match(line))

    def known_failure(self, output: str) -> TargetError | None:
        """The error of an LLDB without Python, or with one that does not find LLDB's own module."""
        if _NO_PYTHON in output:
            return TargetError(
                "this lldb has no Python inside",
                why="it was built without",
                help=f"install one that has it (apt-get install lldb-19), or {OTHERS}",
            )
        found = _CANNOT_LOAD.search(output)
        if found:
            return TargetError(
                "the Python inside this lldb cannot load LLDB's own module",
                why=f"{found.group()}: its package (python3-lldb-VERSION) is not installed, or not where this lldb "
                "looks (Debian 12's lldb-14)",
                help=f"apt-get install lldb-16 or later, or {OTHERS}",
            )
        return None


def _versioned(folders: Sequence[str]) -> list[tuple[int, str]]:
    """(version, path) of each lldb-VERSION."""
    found = []
    for folder in folders:
        try:
            names = os.listdir(folder)  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            match = _VERSIONED.fullmatch(name)
            path = find_program(name) if match else None
            if match and path is not None:
                found.append((int(match.group(1)), path))
    return found


def launch() -> DebuggerLaunch:
    """Give the description of how LLDB is started."""
    return LldbLaunch()
