"""A program: a tool that is a command of scripts/dispatch alone, and finds the processes that it is about itself."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from gdbext.diagnosis.tool import BaseTool, Mode
from gdbext.diagnosis.tool_arguments import CommandParser, HelpRequested
from gdbext.errors import UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from gdbext.tools.table import Outcome

    Dispatch = Callable[[Sequence[str]], int]
    """scripts/dispatch once more, with these arguments; its exit status."""


class Program(BaseTool):
    """``scripts/dispatch NAME …``: takes the whole rest of the command line."""

    mode = Mode.PROGRAM

    def parser(self) -> ArgumentParser:
        """The parser of its arguments, which also makes its help."""
        parser = CommandParser(f"dispatch {self.name}", self.summary)
        self.arguments(parser)
        return parser.full()

    def parse(self, argv: Sequence[str]) -> Namespace:
        """The arguments. Raises UsageError, HelpRequested."""
        parser = self.parser()
        if {"-h", "--help"} & set(argv):
            raise HelpRequested(parser.format_help())
        return parser.parse_args(list(argv))

    @abstractmethod
    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Run it with the words behind its name. ``color``: for a terminal that shows colours. Raises GdbextError, and
        HelpRequested, which whoever runs programs shows."""


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 1e9
"""Seconds that a longer duration is taken for, 30 years."""


def seconds(text: str) -> float:
    """The duration that timeout(1) takes: a number, and perhaps a unit. Raises UsageError."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    try:
        found = float(number) * unit
    except ValueError:
        found = -1.0
    if not found >= 0:
        raise UsageError(f"{text!r} is not a duration", help="a number of seconds, or one with s, m, h or d")
    return min(found, _LONGEST)
