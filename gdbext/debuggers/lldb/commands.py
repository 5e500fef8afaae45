"""The commands inside LLDB: one command object per entry of the registry, and the same as words of ``dispatch``."""

from __future__ import annotations

import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import lldb

from gdbext.commands import registry
from gdbext.debuggers.lldb.debugger import LldbDebugger
from gdbext.debuggers.lldb.version import check_version
from gdbext.debuggers.shell import Shell
from gdbext.errors import TargetError, UsageError

CONTAINER = "dispatch"
_NAMESPACE = "gdbext_commands"
"""The name by which LLDB finds our classes, for as long as it takes to define the commands."""


class DispatchCommand:
    """One command of the registry. LLDB makes the object and calls it."""

    entry: registry.Entry
    commands: LldbCommands

    def __init__(self, debugger: lldb.SBDebugger, _: dict[str, object]) -> None:
        del debugger

    def __call__(
        self, _: lldb.SBDebugger, words: str, context: lldb.SBExecutionContext, result: lldb.SBCommandReturnObject
    ) -> None:
        """Called by LLDB. Failures become the command's error."""
        try:
            outcome = self.commands.execute(self.entry, words, context)
        except KeyboardInterrupt:  # as the command ended
            outcome = registry.Outcome(1, "", "interrupted")
        if outcome.output:
            result.AppendMessage(_encodable(outcome.output).rstrip("\n"))
        if outcome.error:
            result.SetError(_encodable(outcome.error))
        else:
            result.SetStatus(lldb.eReturnStatusSuccessFinishResult)

    def get_short_help(self) -> str:
        """A line for ``help``."""
        return self.entry.summary

    def get_long_help(self) -> str:
        """What ``help dispatch-bt`` shows; made when it is asked for."""
        return registry.help_text(self.entry)


class LldbCommands:
    """All commands of one debugger, from ``command script import gdbext/lldb_init.py`` until the next one."""

    def __init__(self, debugger: lldb.SBDebugger, names: dict[str, object]) -> None:
        """Define the commands. ``names`` is LLDB's namespace for scripts, left as it was. Raises TargetError."""
        check_version(debugger)
        self._debugger = debugger
        self._ours = LldbDebugger(debugger, names)
        self._shell = Shell(self._ours)
        classes = SimpleNamespace()
        names[_NAMESPACE] = classes
        try:
            self._command(f'command container add -o -h "Explain what a PyTorch process is doing." {CONTAINER}')
            for entry in registry.TABLE:
                name = entry.name.replace("-", "_")
                setattr(classes, name, type(name, (DispatchCommand,), {"entry": entry, "commands": self}))
                for words in (entry.name, f"{CONTAINER} {_word(entry)}"):
                    self._command(f"command script add -o -c {_NAMESPACE}.{name} {words}")
        finally:
            del names[_NAMESPACE]

    def execute(self, entry: registry.Entry, words: str, context: lldb.SBExecutionContext) -> registry.Outcome:
        """Run one command on what ``context`` says."""
        try:
            argv = shlex.split(words)
        except ValueError as error:
            return registry.failure(entry.name, [], UsageError(f"{entry.name}: {error}", help=f"help {entry.name}"))
        with self._ours.selection.command(context), _api_lock(entry, context):
            return self._shell.execute(entry, argv, self._wants_color())

    def unload(self) -> None:
        """Make room for a newer version of the commands."""
        self._shell.close()

    def _wants_color(self) -> bool:
        is_terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
        return is_terminal and bool(self._debugger.GetUseColor())

    def _command(self, line: str) -> None:
        result = lldb.SBCommandReturnObject()
        self._debugger.GetCommandInterpreter().HandleCommand(line, result)
        if not result.Succeeded():
            raise TargetError(f"LLDB refuses {line!r}: {result.GetError()}")


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


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
