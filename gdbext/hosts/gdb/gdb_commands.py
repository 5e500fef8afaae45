"""The contents of ``source gdbext/init.py``: a gdb.Command for each row of the table, and printers of values."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

import gdb

from gdbext.engine.targets.system import proc_files
from gdbext.engine.terminal import shown, wrapped
from gdbext.hosts.gdb.gdb_printers import PrinterRegistration, before_next_prompt
from gdbext.tools import table

if TYPE_CHECKING:
    from gdbext.hosts.debugger.command_shell import Shell


class GdbCommand(gdb.Command):  # type: ignore[misc]
    """One command of the table. gdb's help shows its ``__doc__``, which gdb copies at construction."""

    def __init__(self, row: table.ToolRow, commands: GdbCommands, documentation: str, name: str) -> None:
        self._row = row
        self._commands = commands
        self.__doc__ = documentation
        super().__init__(name, gdb.COMMAND_USER)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Called by gdb. Failures become gdb.GdbError, or with --json a document."""
        self.dont_repeat()
        argv = gdb.string_to_argv(argument)
        is_terminal = from_tty and sys.__stdout__ is not None and sys.__stdout__.isatty()
        color = is_terminal and bool(gdb.parameter("style enabled"))
        outcome = self._commands.shell.execute(self._row, argv, color)
        width = 0 if "--json" in argv else gdb.parameter("width") or 0
        try:
            if outcome.output:
                _write(wrapped(outcome.output, width) if width else outcome.output, gdb.STDOUT)
        except KeyboardInterrupt:  # the user ended gdb's pager
            return
        if outcome.error:
            if not outcome.output:
                raise gdb.GdbError(outcome.error)
            _write(outcome.error + "\n", gdb.STDERR)

    def complete(self, text: str, word: str) -> Sequence[str]:
        """Completions of the command's arguments ``text``; ``word`` is the part of the last one that gdb replaces."""
        words = text.split()
        current = "" if not words or text[-1:].isspace() else words.pop()
        # gdb completes its own idea of the last word, which begins after the option's dashes.
        dashes = len(current) - len(word) if current.endswith(word) else 0
        return [name[dashes:] for name in self._commands.shell.completions(self._row, words, current)]


class GdbPrefix(gdb.Command):  # type: ignore[misc]
    """``dispatch``: the commands as its words, ``dispatch bt`` for dispatch-bt, as LLDB has them."""

    def __init__(self) -> None:
        self.__doc__ = "Explain what a PyTorch process is doing; without a subcommand: why it hangs or crashed."
        super().__init__(table.PREFIX, gdb.COMMAND_USER, gdb.COMPLETE_NONE, True)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Called by gdb if no word that it knows follows. Raises gdb.GdbError."""
        if argument:
            raise gdb.GdbError(f'"{table.PREFIX} {argument}" is not a command; help {table.PREFIX} lists all')
        try:
            gdb.execute(table.DEFAULT, from_tty)
        except gdb.error as error:
            raise gdb.GdbError(str(error)) from None


class GdbCommands:
    """All commands, from ``source gdbext/init.py`` until the next one."""

    def __init__(self) -> None:
        """Define the commands, with a line of help each. The whole help, for which every command must be imported
        (0.1 s), follows with the first prompt, or at once if gdb's command line asks for help: with -batch there is no
        prompt."""
        GdbPrefix()
        self._define(_whole_help if _help_is_requested() else lambda row: f"{row.summary}\nSee: {row.name} --help")
        self._printers = PrinterRegistration(lambda value: self.shell.summaries.summary_of(value))
        self._cancel_help = before_next_prompt(lambda: self._define(_whole_help))

    @cached_property
    def shell(self) -> Shell:
        """Runs the commands. Sourcing init.py takes half as long without this import."""
        from gdbext.hosts.debugger.command_shell import Shell
        from gdbext.hosts.gdb.gdb_debugger import GdbDebugger

        return Shell(GdbDebugger())

    def unload(self) -> None:
        """Disconnect from gdb, before the commands are loaded anew."""
        self._printers.remove()
        if "shell" in vars(self):
            self.shell.close()
        self._cancel_help()

    def _define(self, documentation: Callable[[table.ToolRow], str]) -> None:
        """Define all commands, by their names and as words of ``dispatch``, with the help ``documentation(row)``."""
        for row in table.every_command():
            text = documentation(row)
            GdbCommand(row, self, text, row.name)
            GdbCommand(row, self, text, f"{table.PREFIX} {table.short_name(row)}")


def _whole_help(row: table.ToolRow) -> str:
    """The help, after the line that gdb's lists of commands show."""
    return f"{row.summary}\n\n{table.help_text(row)}"


def _help_is_requested() -> bool:
    """True if a command of gdb's command line, or a line of a script that it names (-x FILE), is "help"."""
    words = proc_files.text("/proc/self/cmdline").split("\0")
    options = ("x", "command", "ix", "init-command")  # that name a script to run, after one dash or two
    scripts = [word for option, word in zip(words, words[1:]) if option.lstrip("-") in options]
    scripts += [word.partition("=")[2] for word in words if word.lstrip("-").partition("=")[0] in options]
    lines = list(words)
    for path in scripts:
        if os.path.isfile(path):  # noqa: PTH113 - a pipe would wait for its writer
            with suppress(OSError), open(path, errors="replace") as script:
                lines += script.read(1 << 16).splitlines()
    return any(line.split()[:1] in (["help"], ["h"]) for line in lines)


def _write(text: str, stream: int) -> None:
    """Print text on a stream of gdb's (gdb.STDOUT, gdb.STDERR)."""
    text = shown(text)
    try:
        gdb.write(text, stream)
    except (UnicodeError, gdb.error):  # gdb's host charset (LANG=C) has no such character
        gdb.write(text.encode("ascii", "backslashreplace").decode(), stream)
