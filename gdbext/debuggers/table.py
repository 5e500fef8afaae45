"""The debuggers that gdbext runs in: one row each. They are imported by name only, when they are asked for."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.debuggers.base import Debugger, Launch

ENTRIES = {"gdb": "init.py", "lldb": "lldb_init.py"}
"""Debugger to the file that a user loads into it, beside the packages. Each has a folder here of that name, in which
``launch.py`` has ``launch()`` and ``debugger.py`` has ``debugger()``."""


def launch(name: str) -> Launch:
    """How that debugger is started."""
    found: Launch = import_module(f"gdbext.debuggers.{name}.launch").launch()
    return found


def debugger(name: str) -> Debugger:
    """The debugger, inside which this runs."""
    found: Debugger = import_module(f"gdbext.debuggers.{name}.debugger").debugger()
    return found
