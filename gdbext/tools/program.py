"""A program: a tool that is a command of scripts/dispatch only, and finds the processes to examine by itself."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from gdbext.diagnosis.tool import BaseTool
from gdbext.diagnosis.tool_arguments import CommandParser

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Collection, Sequence

    from gdbext.tools.outcome import Outcome

    Dispatch = Callable[[Sequence[str]], int]
    """scripts/dispatch once more, with these arguments; its exit status."""


class Program(BaseTool):
    """``scripts/dispatch NAME …``: takes the whole rest of the command line."""

    common: Collection[str] = ()
    """The options of --json and --why that change what it prints; it accepts both."""

    def parser(self) -> CommandParser:
        parser = CommandParser(f"dispatch {self.name}", self.summary, self.common)
        self.arguments(parser)
        return parser

    def parse(self, argv: Sequence[str]) -> Namespace:
        """The arguments. Raises UsageError, HelpRequested."""
        return self.parser().parse(argv)

    @abstractmethod
    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Run it with the arguments that follow its name. ``color``: for a terminal that shows colors. Raises
        GdbextError, and HelpRequested, whose text the caller prints."""
