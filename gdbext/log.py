"""Messages about gdbext itself, by Python's logging, if $GDBEXT_DEBUG is set.

``GDBEXT_DEBUG`` is a level's name (debug, info, warning, error), or 1 for all. Messages go to standard error; those
from inside a debugger that scripts/dispatch starts appear after it has exited. Without the variable, logging is not
imported, which takes 12 ms, a tenth of a whole run.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gdbext.engine.terminal import shown

if TYPE_CHECKING:
    import logging

VARIABLE = "GDBEXT_DEBUG"


class Silence:
    """A logger that drops everything."""

    def debug(self, message: str, *arguments: object) -> None:
        pass

    info = debug


def is_wanted() -> bool:
    """True if the user asked for messages, and for tracebacks of internal errors."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def logger(name: str) -> logging.Logger | Silence:
    """The logger of a module: ``_log = logger(__name__)``. Configures only the logger "gdbext": a debugger's Python may
    have loggers of the user."""
    if not is_wanted():
        return Silence()
    import logging  # 5 ms, for GDBEXT_DEBUG=1

    root = logging.getLogger("gdbext")
    if not root.handlers:
        level = logging.getLevelName(os.environ[VARIABLE].upper())
        root.setLevel(level if isinstance(level, int) else logging.DEBUG)
        root.propagate = False

        class SafeFormatter(logging.Formatter):
            def format(self, record: logging.LogRecord) -> str:
                return shown(super().format(record))

        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(SafeFormatter("%(relativeCreated)8.1f ms %(name)s: %(message)s"))
        root.addHandler(handler)
    return root.getChild(name.partition(".")[2] or name)
