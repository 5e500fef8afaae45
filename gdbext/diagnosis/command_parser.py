"""ArgparseParser: the parser of a command's arguments as one of argparse, made where flags alone do not tell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from gdbext.errors import UsageError

Declaration = tuple[int, tuple[str, ...], dict[str, object]]
"""(number of its group of alternatives or 0, names, options) of an argument, as argparse has them."""
WIDTH = 100
"""Columns of the help, fixed: the text is made before anybody knows the terminal, and gdb does not wrap it."""

_ALL = ("*", "+")
"""The word by which argparse says that all words up to the next option are values."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)


class ArgparseParser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError and never prints or exits."""

    def __init__(
        self, name: str, description: str | None, epilog: str | None, declarations: Sequence[Declaration]
    ) -> None:
        super().__init__(
            prog=name,
            description=description,
            epilog=epilog,
            formatter_class=_Formatter,
            add_help=False,
            allow_abbrev=False,
        )
        groups: dict[int, Any] = {0: self}
        for group, names, options in declarations:
            if group not in groups:
                groups[group] = self.add_mutually_exclusive_group()
            hidden = {"help": argparse.SUPPRESS} if options.get("help") == argparse.SUPPRESS else {}
            groups[group].add_argument(*names, **{**options, **hidden})

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments. Raises UsageError."""
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
        """All that begin with a dash and that the help shows."""
        return [action for action in self._actions if action.option_strings and action.help != argparse.SUPPRESS]

    def arguments(self) -> list[argparse.Action]:
        """All other arguments, in order."""
        return [action for action in self._actions if not action.option_strings]

    def awaited(self, words: Sequence[str]) -> argparse.Action | None:
        """The option or argument that a word behind these would be a value of."""
        arguments = self.arguments()
        option: argparse.Action | None = None
        for word in words:
            if word.startswith("-"):
                option = next(
                    (each for each in self.options() if word in each.option_strings and each.nargs != 0), None
                )
            elif option:
                option = option if option.nargs in _ALL else None
            elif arguments and arguments[0].nargs not in _ALL:
                del arguments[0]
        return option or next(iter(arguments), None)
