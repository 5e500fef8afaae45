"""The contents of ``command script import gdbext/lldb_init.py``: a command object per row of the table, the
same as words of ``dispatch``, and printers of values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import lldb

from gdbext.errors import TargetError
from gdbext.hosts.debugger.command_shell import Shell
from gdbext.hosts.lldb.lldb_debugger import LldbDebugger
from gdbext.hosts.lldb.lldb_printers import LldbTypePrinters
from gdbext.hosts.lldb.parsed_command import LldbCommand, ParsedCommand, check_version
from gdbext.tools import table
from gdbext.tools.outcome import Outcome

_NAMESPACE = "gdbext_commands"
"""The name by which LLDB finds our classes, for as long as it takes to define the commands."""


class LldbCommands:
    """All commands of one debugger, from ``command script import gdbext/lldb_init.py`` until the next one."""

    def __init__(self, debugger: lldb.SBDebugger, names: dict[str, object]) -> None:
        """Define the commands. ``names`` is LLDB's namespace for scripts, left as it was. Raises TargetError."""
        check_version(debugger)
        self._debugger = debugger
        self._ours = LldbDebugger(debugger, names)
        self._shell = Shell(self._ours)
        classes = names[_NAMESPACE] = SimpleNamespace()
        try:
            self._command(f'command container add -o -h "Explain what a PyTorch process is doing." {table.PREFIX}')
            self._define(vars(classes))
        finally:
            del names[_NAMESPACE]
        self._printers = LldbTypePrinters(self._ours.selection, self._shell.summaries)

    def _define(self, classes: dict[str, object]) -> None:
        kind, add = _kind_of_command(self._debugger)
        for row in table.every_command():
            name = row.name.replace("-", "_")
            classes[name] = type(name, (kind,), {"row": row, "commands": self})
            for words in (row.name, f"{table.PREFIX} {table.short_name(row)}"):
                self._command(f"{add} -o -c {_NAMESPACE}.{name} {words}")

    def execute(self, row: table.ToolRow, argv: Sequence[str], context: lldb.SBExecutionContext) -> Outcome:
        """Run one command on what ``context`` says."""
        with self._ours.selection.command(context), _api_lock(row, argv, context):
            return self._shell.execute(row, argv, self._wants_color())

    def completions(self, row: table.ToolRow, words: Sequence[str], current: str) -> list[str]:
        """The words that ``current`` may become behind ``words``."""
        with self._ours.selection.session():
            return self._shell.completions(row, words, current)

    def unload(self) -> None:
        """Make room for a newer version of the commands."""
        self._printers.remove()
        self._shell.close()

    def _wants_color(self) -> bool:
        is_terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
        return is_terminal and bool(self._debugger.GetUseColor())

    def _command(self, line: str) -> None:
        result = _run(self._debugger, line)
        if not result.Succeeded():
            raise TargetError(f"LLDB refuses {line!r}: {result.GetError()}")


def _run(debugger: lldb.SBDebugger, line: str) -> lldb.SBCommandReturnObject:
    result = lldb.SBCommandReturnObject()
    debugger.GetCommandInterpreter().HandleCommand(line, result)
    return result


def _kind_of_command(debugger: lldb.SBDebugger) -> tuple[type[LldbCommand], str]:
    """The class of our commands, and how they are added."""
    if "--parsed" not in (_run(debugger, "help command script add").GetOutput() or ""):
        return LldbCommand, "command script add"
    return ParsedCommand, "command script add --parsed"


def _api_lock(
    row: table.ToolRow, argv: Sequence[str], context: lldb.SBExecutionContext
) -> AbstractContextManager[object]:
    """Nobody else resumes the process while a command reads it (LLDB 22); others resume it themselves."""
    target = context.GetTarget()
    if row.mode != "stopped" or row.runs_on(argv) or not target.IsValid() or not hasattr(target, "GetAPIMutex"):
        return nullcontext()
    lock: AbstractContextManager[object] = target.GetAPIMutex()
    return lock
