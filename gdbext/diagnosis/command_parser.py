"""The parser of a command's arguments, the same in gdb, in LLDB and in scripts/dispatch."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import NoReturn

from gdbext.errors import HelpRequested, UsageError

WIDTH = 100
"""Columns of the help, fixed: the text is made before the terminal is known, and gdb does not wrap it."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)


class CommandParser(argparse.ArgumentParser):
    """The parser of a command: it never prints or exits, but raises UsageError and HelpRequested."""

    def __init__(self, name: str, summary: str, shown: Collection[str] = ("--json", "--why")) -> None:
        """``shown``: those of --json and --why that have an effect; the help does not show the others."""
        super().__init__(
            prog=name,
            description=summary,
            formatter_class=_Formatter,
            add_help=False,
            allow_abbrev=False,
            conflict_handler="resolve",  # a command may say more about its --json
        )
        self.add_argument("--help", "-h", action="store_true", help="show this text")
        for option, text in (
            ("--json", "print one JSON document (schema gdbext/1) instead of text"),
            ("--why", "also show the evidence for each statement"),
        ):
            self.add_argument(option, action="store_true", help=text if option in shown else argparse.SUPPRESS)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments. Raises UsageError, HelpRequested."""
        if {"--help", "-h"} & set(argv):
            raise HelpRequested(self.format_help())
        return self.parse_intermixed_args(list(argv))  # dispatch-values print --json mm

    def error(self, message: str) -> NoReturn:
        """Called by argparse for every mistake."""
        usage = " ".join(self.format_usage().split())
        raise UsageError(f"{self.prog}: {message}", why=usage, help=f"{self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002 - argparse's signature
        """Called by argparse to end the process; a typing error must end no debugger."""
        raise UsageError(f"{self.prog}: {message or 'wrong usage'}", help=f"{self.prog} --help")

    def option_names(self) -> list[str]:
        return sorted(name for action in self.options() for name in action.option_strings if name.startswith("--"))

    def format_arguments_help(self, summary: str) -> str:
        """The help without usage, options and ``summary``, for a debugger that shows those itself."""
        formatter = self._get_formatter()
        formatter.add_text((self.description or "").removeprefix(summary).strip())
        formatter.start_section("arguments")
        formatter.add_arguments(self.arguments())
        formatter.end_section()
        return formatter.format_help()

    def options(self) -> list[argparse.Action]:
        """All arguments that begin with a dash and that the help shows."""
        return [action for action in self._actions if action.option_strings and action.help != argparse.SUPPRESS]

    def arguments(self) -> list[argparse.Action]:
        """All other arguments, in order."""
        return [action for action in self._actions if not action.option_strings]

    def awaited(self, words: Sequence[str]) -> argparse.Action | None:
        """The option or argument whose value a word after these would be."""
        arguments = self.arguments()
        option: argparse.Action | None = None
        takes_all = ("*", "+")  # all words up to the next option are values
        for word in words:
            if word.startswith("-"):
                options = (each for each in self.options() if word in each.option_strings and each.nargs != 0)
                option = next(options, None)
            elif option:
                option = option if option.nargs in takes_all else None
            elif arguments and arguments[0].nargs not in takes_all:
                del arguments[0]
        return option or next(iter(arguments), None)
