"""Which LLDBs will do."""

from __future__ import annotations

import re

import lldb

from gdbext.errors import TargetError

OLDEST = 16
"""The oldest version that the tests have run in: Debian 12's package of 14 has a Python module that does not load.
Apple numbers its own differently ("lldb-1500.0.404.7"); those are not refused."""


ASKS_FOR_VALUES = 20
"""The first version that asks a command how an argument may be completed (pull request 109062 of llvm-project); 19 was
the first that asks for options (70734)."""


def number(debugger: lldb.SBDebugger) -> int | None:
    """The release, None for Apple's."""
    found = re.match(r"lldb version (\d+)", debugger.GetVersionString())
    return None if found is None else int(found.group(1))


def check_version(debugger: lldb.SBDebugger) -> None:
    """Raises TargetError for an LLDB that is too old."""
    found = number(debugger)
    if found is not None and found < OLDEST:
        raise TargetError(
            f"this is LLDB {found}; {OLDEST} or later is needed",
            why="older ones have not been tried",
            help="apt-get install lldb-16 or later, and name it in $LLDB; or use --debugger none",
        )
