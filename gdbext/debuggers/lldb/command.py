"""One command inside LLDB, which hands over the line as it was typed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Protocol

import lldb

from gdbext.commands import registry
from gdbext.errors import UsageError

NAMES_ONLY = "This LLDB completes names of commands; options are completed from LLDB 19 on, operators from 20 on."
"""It asks nothing of a command that it hands the line as it was typed."""


class Runner(Protocol):
    """All commands of one debugger."""

    def execute(
        self, entry: registry.Entry, argv: Sequence[str], context: lldb.SBExecutionContext
    ) -> registry.Outcome:
        """Run one command on what ``context`` says."""

    def completions(self, entry: registry.Entry, words: Sequence[str], current: str) -> list[str]:
        """What ``current`` may become behind ``words``."""


class DispatchCommand:
    """One command of the registry. LLDB makes the object and calls it."""

    entry: registry.Entry
    commands: Runner

    def __init__(self, debugger: lldb.SBDebugger, _: dict[str, object]) -> None:
        del debugger

    def __call__(
        self, _: lldb.SBDebugger, words: str, context: lldb.SBExecutionContext, result: lldb.SBCommandReturnObject
    ) -> None:
        """Called by LLDB with the line as it was typed."""
        try:
            argv = shlex.split(words)
        except ValueError as error:
            name = self.entry.name
            _show(registry.failure(name, [], UsageError(f"{name}: {error}", help=f"help {name}")), result)
            return
        self.answer(argv, context, result)

    def answer(
        self, argv: Sequence[str], context: lldb.SBExecutionContext, result: lldb.SBCommandReturnObject
    ) -> None:
        """Run it. Failures become the command's error."""
        try:
            outcome = self.commands.execute(self.entry, argv, context)
        except KeyboardInterrupt:  # as the command ended
            outcome = registry.Outcome(1, "", "interrupted")
        _show(outcome, result)

    def get_short_help(self) -> str:
        """A line for ``help``."""
        return self.entry.summary

    def get_long_help(self) -> str:
        """What ``help dispatch-bt`` shows; made when it is asked for."""
        return f"{registry.help_text(self.entry)}\n{NAMES_ONLY}\n"


def _show(outcome: registry.Outcome, result: lldb.SBCommandReturnObject) -> None:
    if outcome.output:
        result.AppendMessage(_encodable(outcome.output).rstrip("\n"))
    if outcome.error:
        result.SetError(_encodable(outcome.error))
    else:
        result.SetStatus(lldb.eReturnStatusSuccessFinishResult)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
