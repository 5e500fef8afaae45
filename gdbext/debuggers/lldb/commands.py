"""What ``command script import gdbext/lldb_init.py`` brings into LLDB: a command object per entry of the registry, the
same as words of ``dispatch``, and printers of values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import lldb

from gdbext.commands import registry
from gdbext.debuggers.lldb.command import DispatchCommand
from gdbext.debuggers.lldb.debugger import LldbDebugger
from gdbext.debuggers.lldb.printers import TypePrinters
from gdbext.debuggers.lldb.version import check_version
from gdbext.debuggers.shell import Shell
from gdbext.errors import TargetError

CONTAINER = "dispatch"
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
            self._command(f'command container add -o -h "Explain what a PyTorch process is doing." {CONTAINER}')
            self._define(vars(classes))
        finally:
            del names[_NAMESPACE]
        self._printers = TypePrinters(self._ours.selection, self._shell.summaries)

    def _define(self, classes: dict[str, object]) -> None:
        kind, add = _kind_of_command(self._debugger)
        for entry in registry.TABLE:
            name = entry.name.replace("-", "_")
            classes[name] = type(name, (kind,), {"entry": entry, "commands": self})
            for words in (entry.name, f"{CONTAINER} {_word(entry)}"):
                self._command(f"{add} -o -c {_NAMESPACE}.{name} {words}")

    def execute(
        self, entry: registry.Entry, argv: Sequence[str], context: lldb.SBExecutionContext
    ) -> registry.Outcome:
        """Run one command on what ``context`` says."""
        with self._ours.selection.command(context), _api_lock(entry, context):
            return self._shell.execute(entry, argv, self._wants_color())

    def completions(self, entry: registry.Entry, words: Sequence[str], current: str) -> list[str]:
        """What ``current`` may become behind ``words``."""
        with self._ours.selection.session():
            return self._shell.completions(entry, words, current)

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


def _kind_of_command(debugger: lldb.SBDebugger) -> tuple[type[DispatchCommand], str]:
    """The class of our commands, and how they are added."""
    if "--parsed" not in (_run(debugger, "help command script add").GetOutput() or ""):
        return DispatchCommand, "command script add"
    from gdbext.debuggers.lldb.parsed_command import ParsedCommand

    return ParsedCommand, "command script add --parsed"


def _word(entry: registry.Entry) -> str:
    """The command's name in the container: ``dispatch bt`` for dispatch-bt."""
    return entry.name[len(CONTAINER) + 1 :] if entry.name.startswith(f"{CONTAINER}-") else entry.name


def _api_lock(entry: registry.Entry, context: lldb.SBExecutionContext) -> AbstractContextManager[object]:
    """Nobody else resumes the process while a command reads it (LLDB 22); live commands resume it themselves."""
    target = context.GetTarget()
    if entry.takes_host or not target.IsValid() or not hasattr(target, "GetAPIMutex"):
        return nullcontext()
    lock: AbstractContextManager[object] = target.GetAPIMutex()
    return lock

