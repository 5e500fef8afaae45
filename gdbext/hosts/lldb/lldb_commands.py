"""The contents of ``command script import gdbext/lldb_init.py``: a command object for each row of the table, the same
as words of ``dispatch``, and printers of values.

LLDB 19 and later parses and completes a command's line itself, by definitions of options and arguments; since LLDB 20
it also asks for completions of values. The parsed parts are joined to words again, for the commands' own parser.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import lldb

from gdbext.diagnosis.tool_arguments import names_file, takes, takes_all
from gdbext.engine.terminal import shown
from gdbext.errors import TargetError, UsageError
from gdbext.hosts.debugger.command_shell import Shell
from gdbext.hosts.lldb.lldb_debugger import LldbDebugger
from gdbext.hosts.lldb.lldb_printers import LldbTypePrinters
from gdbext.hosts.lldb.selection import check_version, lldb_release, run_command
from gdbext.tools import table
from gdbext.tools.outcome import Outcome, failure

_ASKS_FOR_VALUES = 20  # the first LLDB that asks a command for completions of an argument


class LldbCommand:
    """One command of the table, for an LLDB that does not parse its line. LLDB makes the object and calls it."""

    row: table.ToolRow
    commands: LldbCommands

    def __init__(self, debugger: lldb.SBDebugger, _: dict[str, object]) -> None:
        del debugger

    def __call__(
        self, _: lldb.SBDebugger, words: str, context: lldb.SBExecutionContext, result: lldb.SBCommandReturnObject
    ) -> None:
        """Called by LLDB with the line as it was typed."""
        try:
            argv = shlex.split(words)
        except ValueError as error:
            name = self.row.name
            _show(failure(name, [], UsageError(f"{name}: {error}", help=f"help {name}")), result)
            return
        self.run(argv, context, result)

    def run(self, argv: Sequence[str], context: lldb.SBExecutionContext, result: lldb.SBCommandReturnObject) -> None:
        """Run the command and put its output, or its failure, into LLDB's ``result``."""
        try:
            outcome = self.commands.execute(self.row, argv, context)
        except KeyboardInterrupt:  # as the command ended
            outcome = Outcome(1, "", "interrupted")
        _show(outcome, result)

    def get_short_help(self) -> str:
        return self.row.summary

    def get_long_help(self) -> str:
        note = "This LLDB completes names of commands; options are completed from LLDB 19 on, operators from 20 on."
        return f"{table.help_text(self.row)}\n{note}\n"


def _show(outcome: Outcome, result: lldb.SBCommandReturnObject) -> None:
    """Put the outcome's texts into LLDB's ``result``."""
    if outcome.output:
        result.AppendMessage(shown(outcome.output).rstrip("\n"))
    if outcome.error:
        result.SetError(shown(outcome.error))
    else:
        result.SetStatus(lldb.eReturnStatusSuccessFinishResult)


class ParsedCommand(LldbCommand):
    """One command of the table, whose line LLDB parses. LLDB makes the object and calls its methods by their names."""

    def __init__(self, debugger: lldb.SBDebugger, names: dict[str, object]) -> None:
        super().__init__(debugger, names)
        self._parser = table.parser_of(self.row)
        options = self._parser.options()
        long_names = (next(name[2:] for name in row.option_strings if name.startswith("--")) for row in options)
        self._options = dict(zip(long_names, options))
        self._given: list[tuple[argparse.Action, str]] = []
        self._release = lldb_release(debugger) or _ASKS_FOR_VALUES

    def get_flags(self) -> int:
        """0: LLDB need not check that there is a process; commands check what they need."""
        return 0

    def get_options_definition(self) -> dict[str, dict[str, object]]:
        """Each option by its long name."""
        return {name: _definition(option, number) for number, (name, option) in enumerate(self._options.items(), 1)}

    def get_args_definition(self) -> list[list[dict[str, object]]]:
        """Any number of arguments: the commands' own parser refuses those that they do not take."""
        return [[{"arg_type": lldb.eArgTypeValue, "repeat": "optional"}]]

    def option_parsing_started(self) -> None:
        """Called by LLDB before the options of a line."""
        self._given = []

    def set_option_value(self, _: lldb.SBExecutionContext, name: str, value: str | None) -> bool:
        """Called by LLDB for each option of the line, by its long name, also if the user abbreviated it."""
        self._given.append((self._options[name], value or ""))
        return True

    def __call__(
        self,
        debugger: lldb.SBDebugger,
        arguments: lldb.SBStructuredData,
        context: lldb.SBExecutionContext,
        result: lldb.SBCommandReturnObject,
    ) -> None:
        """Called by LLDB to run the command."""
        del debugger
        # 64 KB: the most that an argument may have
        words = [arguments.GetItemAtIndex(index).GetStringValue(1 << 16) for index in range(arguments.GetSize())]
        options = []
        # an option that takes all words after it is last, as LLDB has no such options
        for option, value in sorted(self._given, key=lambda pair: takes_all(pair[0])):
            name = option.option_strings[0]
            options.append(f"{name}={value}" if _takes_one_value(option) else name)
        dashes = ["--"] if any(word.startswith("-") for word in words) else []
        self.run([*options, *dashes, *words], context, result)

    def handle_argument_completion(self, arguments: Sequence[str], index: int, cursor: int) -> dict[str, object] | bool:
        """Called by LLDB 20: completions of the argument with the cursor."""
        return self._completion(arguments[:index], arguments[index][:cursor] if index < len(arguments) else "")

    def handle_option_argument_completion(self, name: str, cursor: int) -> dict[str, object] | bool:
        """Called by LLDB 20: completions of the value of an option."""
        value = self._given[-1][1] if self._given else ""
        return self._completion([f"--{name}"], value[:cursor])

    def _completion(self, words: Sequence[str], current: str) -> dict[str, object] | bool:
        """Completions of the word ``current`` after ``words``, in LLDB's form; True if there are none."""
        completions = self.commands.completions(self.row, words, current)
        if len(completions) == 1 and completions[0].endswith("/"):
            return {"completion": completions[0], "mode": "partial"}
        return {"values": completions} if completions else True

    def get_long_help(self) -> str:
        """The part of the help that LLDB's own list of options leaves out."""
        text = self._parser.format_arguments_help(self.row.summary)
        note = "This LLDB completes options; operators, keys and other arguments are completed from LLDB 20 on."
        return f"{text}\n{note}\n" if self._release < _ASKS_FOR_VALUES else text


def _takes_one_value(option: argparse.Action) -> bool:
    """False for a flag, and for an option that takes all words after it."""
    return takes(option) and not takes_all(option)


def _definition(option: argparse.Action, number: int) -> dict[str, object]:
    """The option as LLDB's OptionDefinition. LLDB distinguishes options by their short names: one without gets the
    control character with that ``number``."""
    short = next((name[1] for name in option.option_strings if len(name) == 2), chr(number))
    help_text = (option.help or option.dest).replace("%%", "%")
    definition: dict[str, object] = {"short_option": short, "required": False, "help": help_text}
    if option.choices is not None:
        definition["enum_values"] = [[str(choice), ""] for choice in option.choices]
    if _takes_one_value(option):
        kind, completion = lldb.eArgTypeValue, lldb.eNoCompletion
        if option.dest == "thread":
            kind, completion = lldb.eArgTypeThreadIndex, lldb.eThreadIndexCompletion
        elif names_file(option):
            kind, completion = lldb.eArgTypeFilename, lldb.eDiskFileCompletion
        definition["value_type"], definition["completion_type"] = kind, completion
    return definition


class LldbCommands:
    """All commands of one debugger, from ``command script import gdbext/lldb_init.py`` until the next one."""

    def __init__(self, debugger: lldb.SBDebugger, names: dict[str, object]) -> None:
        """Define the commands. ``names`` is LLDB's namespace for scripts, left as it was. Raises TargetError."""
        check_version(debugger)
        self._debugger = debugger
        self._ours = LldbDebugger(debugger, names)
        self._shell = Shell(self._ours)
        namespace = "gdbext_commands"  # by which LLDB finds our classes while the commands are defined
        classes = names[namespace] = SimpleNamespace()
        parses = "--parsed" in (run_command(debugger, "help command script add").GetOutput() or "")
        kind, option = (ParsedCommand, " --parsed") if parses else (LldbCommand, "")
        try:
            self._command(f'command container add -o -h "Explain what a PyTorch process is doing." {table.PREFIX}')
            for row in table.every_command():
                name = row.name.replace("-", "_")
                vars(classes)[name] = type(name, (kind,), {"row": row, "commands": self})
                for words in (row.name, f"{table.PREFIX} {table.short_name(row)}"):
                    self._command(f"command script add{option} -o -c {namespace}.{name} {words}")
        finally:
            del names[namespace]
        self._printers = LldbTypePrinters(self._ours.selection, self._shell.summaries)

    def _command(self, line: str) -> None:
        """Run one of LLDB's commands. Raises TargetError if LLDB refuses it."""
        result = run_command(self._debugger, line)
        if not result.Succeeded():
            raise TargetError(f"LLDB refuses {line!r}: {result.GetError()}")

    def execute(self, row: table.ToolRow, argv: Sequence[str], context: lldb.SBExecutionContext) -> Outcome:
        """Run one command on the process, thread and frame of ``context``."""
        is_terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
        color = is_terminal and bool(self._debugger.GetUseColor())
        # No other thread resumes the process while a command reads it (LLDB 22); live commands resume it themselves.
        target = context.GetTarget()
        lock: AbstractContextManager[object] = nullcontext()
        if row.mode == "stopped" and not row.runs_on(argv) and target.IsValid() and hasattr(target, "GetAPIMutex"):
            lock = target.GetAPIMutex()
        with self._ours.selection.command(context), lock:
            return self._shell.execute(row, argv, color)

    def completions(self, row: table.ToolRow, words: Sequence[str], current: str) -> list[str]:
        """Completions of the word ``current`` after ``words``."""
        with self._ours.selection.session_lock:
            return self._shell.completions(row, words, current)

    def unload(self) -> None:
        """Disconnect from LLDB, before the commands are loaded anew."""
        self._printers.remove()
        self._shell.close()
