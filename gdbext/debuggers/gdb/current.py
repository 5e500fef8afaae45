"""What gdb has in front of it: a process, or a core."""

from __future__ import annotations

import re
from collections.abc import Mapping

import gdb

from gdbext.debuggers.gdb.core_target import GdbCoreTarget
from gdbext.debuggers.gdb.target import GdbTarget, connection_type, execute
from gdbext.errors import TargetError, TargetGone
from gdbext.formats.elf.elf_core import is_core
from gdbext.targets.base import Target

_FILE_LINE = re.compile(r"^\s*`(/.*)', ", re.M)


def current_target(states: Mapping[int, str] | None = None) -> Target:
    """The target of gdb's selected inferior. Raises TargetError naming the next step, BadCore, ForeignArchitecture."""
    inferior = gdb.selected_inferior()
    if connection_type(inferior) == "core":
        return GdbCoreTarget(_core_path(inferior), inferior)
    if inferior.pid == 0:
        raise TargetError(
            "gdb has no process and no core",
            why="none was started or loaded yet, or it has ended",
            help="attach PID   or   core-file CORE   or   run",
        )
    thread = gdb.selected_thread()
    if thread is not None and thread.is_running():
        raise TargetError(
            f"process {inferior.pid} is running",
            why="it was continued in the background",
            help="stop it first: interrupt   (then the command again)",
        )
    return GdbTarget(inferior, states)


def stopped_target() -> GdbTarget:
    """The selected process at this stop. Raises TargetGone.

    Not current_target(): inside a breakpoint's stop() gdb says that the thread runs.
    """
    inferior = gdb.selected_inferior()
    if inferior.pid == 0:
        raise TargetGone("the process has ended")
    return GdbTarget(inferior)


def _core_path(inferior: gdb.Inferior) -> str:
    corefile = getattr(inferior, "corefile", None)  # gdb 17
    if corefile is not None:
        return str(corefile.filename)
    # gdb translates its messages, so only the files themselves show which one is the core and which the program.
    for path in _FILE_LINE.findall(execute("info files")):
        if is_core(path):
            return str(path)
    raise TargetError("gdb does not say the path of its core file", help="use: scripts/dispatch -c CORE")
