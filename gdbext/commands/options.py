"""Command lines of the commands: one argparse parser each, the same for gdb, lldb and scripts/dispatch."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from gdbext.errors import UsageError
from gdbext.inspection.expression import NUMBER

if TYPE_CHECKING:
    from gdbext.targets.base import Target, Thread

TENSOR = re.compile(f"(?:tensor:|@){NUMBER}")
"""How a tensor in memory is named where keys are expected: ``tensor:0x7f12…``; group 1 is the address."""

WIDTH = 100
"""Columns of the help, fixed: the text is made before anybody knows the terminal, and gdb does not wrap it."""


class HelpRequested(Exception):
    """--help was given; the text is the message."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError and HelpRequested and never prints or exits."""

    def __init__(self, name: str, summary: str) -> None:
        super().__init__(prog=name, description=summary, formatter_class=_Formatter, add_help=False, allow_abbrev=False)
        self.add_argument("--help", "-h", action="store_true", help="show this text")
        self.add_argument("--json", action="store_true", help="one JSON document instead of text (schema gdbext/1)")
        self.add_argument("--why", action="store_true", help="the evidence for each statement")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments. Raises UsageError, HelpRequested."""
        if "--help" in argv or "-h" in argv:
            raise HelpRequested(self.format_help())
        return self.parse_intermixed_args(list(argv))  # dispatch-values print --json mm

    def error(self, message: str) -> NoReturn:
        """Called by argparse for every mistake."""
        usage = " ".join(self.format_usage().split())
        raise UsageError(f"{self.prog}: {message}", why=usage, help=f"{self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002 - argparse's signature
        """Called by argparse where it would end the process; no debugger must end for a typing error."""
        raise UsageError(f"{self.prog}: {message or 'wrong usage'}", help=f"{self.prog} --help")

    def option_names(self) -> list[str]:
        """All long options, for completion."""
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
        """All that begin with a dash."""
        return [action for action in self._actions if action.option_strings]

    def arguments(self) -> list[argparse.Action]:
        """All others, in order."""
        return [action for action in self._actions if not action.option_strings]

    def awaited(self, words: Sequence[str]) -> argparse.Action | None:
        """The option or argument that a word behind these would be a value of."""
        arguments = self.arguments()
        option: argparse.Action | None = None
        for word in words:
            if word.startswith("-"):
                option = next((each for each in self.options() if word in each.option_strings and takes(each)), None)
            elif option is not None:
                option = option if takes_all(option) else None
            elif arguments and not takes_all(arguments[0]):
                del arguments[0]
        return option or next(iter(arguments), None)


def takes(option: argparse.Action) -> bool:
    """It has a value."""
    return option.nargs != 0


def takes_all(action: argparse.Action) -> bool:
    """All words up to the next option are its values."""
    return action.nargs in ("*", "+")


def names_file(action: argparse.Action) -> bool:
    """Its value is the path of a file or of a folder."""
    return action.metavar in ("FILE", "DIR")


def positive(word: str) -> int:
    """A number greater than 0. Raises ArgumentTypeError."""
    try:
        number = int(word)
    except ValueError:
        number = 0
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number greater than 0")
    return number


def add_thread_choice(parser: argparse.ArgumentParser) -> None:
    """``--thread`` and ``--all``, of which ``chosen_threads`` makes threads."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--thread", metavar="TID|N", help="this thread only (default: the selected one)")
    which.add_argument("--all", action="store_true", help="every thread")


def chosen_threads(target: Target, args: argparse.Namespace, command: str) -> list[Thread]:
    """The threads that a command is about. Raises UsageError."""
    from gdbext.inspection.threads.thread_choice import find_thread

    if args.all:
        return list(target.threads())
    if args.thread is not None:
        return [find_thread(target, args.thread)]
    selected = target.selected_thread()
    if selected is None:
        raise UsageError("no thread is selected", help=f"choose one with: {command} --thread TID, or use --all")
    return [selected]
