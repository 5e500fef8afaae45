"""One command inside LLDB, whose line LLDB 19 and later parses itself, so that it completes it; which LLDBs will do.

LLDB asks for options and arguments when a command is added, and hands over what it found: options one by one, then the
arguments. From LLDB 20 on it also asks what a value or an argument may become. The words that the user may have typed
are put together again, for the commands' own parser.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import Protocol

import lldb

from gdbext.diagnosis.tool_arguments import names_file, takes, takes_all
from gdbext.engine.terminal import shown
from gdbext.errors import TargetError, UsageError
from gdbext.tools import table
from gdbext.tools.outcome import Outcome, failure

NAMES_ONLY = "This LLDB completes names of commands; options are completed from LLDB 19 on, operators from 20 on."
"""It asks nothing of a command that it hands the line as it was typed."""


class Runner(Protocol):
    """All commands of one debugger."""

    def execute(self, row: table.ToolRow, argv: Sequence[str], context: lldb.SBExecutionContext) -> Outcome:
        """Run one command on what ``context`` says."""

    def completions(self, row: table.ToolRow, words: Sequence[str], current: str) -> list[str]:
        """The words that ``current`` may become behind ``words``."""


class LldbCommand:
    """One command of the registry. LLDB makes the object and calls it."""

    row: table.ToolRow
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
            name = self.row.name
            _show(failure(name, [], UsageError(f"{name}: {error}", help=f"help {name}")), result)
            return
        self.answer(argv, context, result)

    def answer(self, argv: Sequence[str], context: lldb.SBExecutionContext, result: lldb.SBCommandReturnObject) -> None:
        """Run it. Failures become the command's error."""
        try:
            outcome = self.commands.execute(self.row, argv, context)
        except KeyboardInterrupt:  # as the command ended
            outcome = Outcome(1, "", "interrupted")
        _show(outcome, result)

    def get_short_help(self) -> str:
        """The line that ``help`` shows of the command."""
        return self.row.summary

    def get_long_help(self) -> str:
        """The text that ``help dispatch-bt`` shows; made when it is asked for."""
        return f"{table.help_text(self.row)}\n{NAMES_ONLY}\n"


def _show(outcome: Outcome, result: lldb.SBCommandReturnObject) -> None:
    if outcome.output:
        result.AppendMessage(shown(outcome.output).rstrip("\n"))
    if outcome.error:
        result.SetError(shown(outcome.error))
    else:
        result.SetStatus(lldb.eReturnStatusSuccessFinishResult)


OPTIONS_ONLY = "This LLDB completes options; operators, keys and other arguments are completed from LLDB 20 on."
_LONGEST = 1 << 16
"""Most bytes that an argument may have."""


class ParsedCommand(LldbCommand):
    """One command of the registry. LLDB makes the object and calls its methods by their names."""

    def __init__(self, debugger: lldb.SBDebugger, names: dict[str, object]) -> None:
        super().__init__(debugger, names)
        self._parser = table.parser_of(self.row)
        self._options = {_long_name(option): option for option in self._parser.options()}
        self._given: list[tuple[argparse.Action, str]] = []
        self._version = number(debugger) or ASKS_FOR_VALUES

    # --- what LLDB asks when the command is added ------------------------------------------------

    def get_flags(self) -> int:
        """None: most commands say themselves what they need."""
        return 0

    def get_options_definition(self) -> dict[str, dict[str, object]]:
        """Each option by its long name."""
        return {name: _definition(option, number) for number, (name, option) in enumerate(self._options.items(), 1)}

    def get_args_definition(self) -> list[list[dict[str, object]]]:
        """Arguments as LLDB wants them described: as many as there are, or any number; those who want none refuse them
        with our words."""
        return [[{"arg_type": lldb.eArgTypeValue, "repeat": "optional"}]]

    # --- one command line ------------------------------------------------------------------------

    def option_parsing_started(self) -> None:
        """Called by LLDB before the options of a line."""
        self._given = []

    def set_option_value(self, _: lldb.SBExecutionContext, name: str, value: str | None) -> bool:
        """Called by LLDB for each option of the line, by its long name, whatever the user abbreviated."""
        self._given.append((self._options[name], value or ""))
        return True

    def __call__(
        self,
        debugger: lldb.SBDebugger,
        arguments: lldb.SBStructuredData,
        context: lldb.SBExecutionContext,
        result: lldb.SBCommandReturnObject,
    ) -> None:
        """Run the command, when LLDB calls it."""
        del debugger
        words = [arguments.GetItemAtIndex(at).GetStringValue(_LONGEST) for at in range(arguments.GetSize())]
        self.answer(self._line(words), context, result)

    def _line(self, arguments: Sequence[str]) -> list[str]:
        """An option that takes all words behind it stands last, as LLDB knows no such options."""
        words = []
        for option, value in sorted(self._given, key=lambda given: takes_all(given[0])):
            name = option.option_strings[0]
            words.append(f"{name}={value}" if _takes_one(option) else name)
        dashes = ["--"] if any(word.startswith("-") for word in arguments) else []
        return [*words, *dashes, *arguments]

    # --- completion (LLDB 20) --------------------------------------------------------------------

    def handle_argument_completion(self, arguments: Sequence[str], at: int, cursor: int) -> dict[str, object] | bool:
        """Called by LLDB: what the argument with the cursor may become."""
        return self._completion(arguments[:at], arguments[at][:cursor] if at < len(arguments) else "")

    def handle_option_argument_completion(self, name: str, cursor: int) -> dict[str, object] | bool:
        """Called by LLDB: what the value of an option may become."""
        value = self._given[-1][1] if self._given else ""
        return self._completion([f"--{name}"], value[:cursor])

    def _completion(self, words: Sequence[str], current: str) -> dict[str, object] | bool:
        found = self.commands.completions(self.row, words, current)
        if len(found) == 1 and found[0].endswith("/"):
            return {"completion": found[0], "mode": "partial"}
        return {"values": found} if found else True

    # --- help ------------------------------------------------------------------------------------

    def get_long_help(self) -> str:
        """The part of the help that LLDB's own list of options leaves out."""
        text = self._parser.format_arguments_help(self.row.summary)
        return f"{text}\n{OPTIONS_ONLY}\n" if self._version < ASKS_FOR_VALUES else text


def _long_name(option: argparse.Action) -> str:
    return next(name[2:] for name in option.option_strings if name.startswith("--"))


def _takes_one(option: argparse.Action) -> bool:
    return takes(option) and not takes_all(option)


def _definition(option: argparse.Action, number: int) -> dict[str, object]:
    """The option as LLDB's OptionDefinition. Each option needs a short name other than NUL, by which LLDB tells options
    apart: a control character where users have none."""
    short = next((name[1] for name in option.option_strings if len(name) == 2), chr(number))
    help_text = (option.help or option.dest).replace("%%", "%")
    definition: dict[str, object] = {"short_option": short, "required": False, "help": help_text}
    if option.choices is not None:
        definition["enum_values"] = [[str(choice), ""] for choice in option.choices]
    if _takes_one(option):
        definition["value_type"], definition["completion_type"] = _value_type(option)
    return definition


def _value_type(option: argparse.Action) -> tuple[int, int]:
    if option.dest == "thread":
        return lldb.eArgTypeThreadIndex, lldb.eThreadIndexCompletion
    if names_file(option):
        return lldb.eArgTypeFilename, lldb.eDiskFileCompletion
    return lldb.eArgTypeValue, lldb.eNoCompletion


OLDEST = 16
"""The oldest version that the tests have run in: Debian 12's package of 14 has a Python module that does not load.
Apple numbers its own differently ("lldb-1500.0.404.7"); those are not refused."""


ASKS_FOR_VALUES = 20
"""The first version that asks a command how an argument may be completed (pull request 109062 of llvm-project); 19 was
the first that asks for options (70734)."""


def number(debugger: lldb.SBDebugger) -> int | None:
    """The release, None for Apple's."""
    found = re.match(r"lldb version (\d+)", debugger.GetVersionString())
    return int(found.group(1)) if found else None


def check_version(debugger: lldb.SBDebugger) -> None:
    """Raises TargetError for an LLDB that is too old."""
    found = number(debugger)
    if found is not None and found < OLDEST:
        raise TargetError(
            f"this is LLDB {found}; {OLDEST} or later is needed",
            why="older ones have not been tried",
            help="apt-get install lldb-16 or later, and name it in $LLDB; or use --debugger none",
        )
