"""The parser of a command's arguments; numbers, registers, addresses and threads as users write them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from gdbext.engine import numbers
from gdbext.engine.numbers import integer
from gdbext.errors import HelpRequested, UsageError

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import Target, TargetThread
    from gdbext.engine.targets.live.unstopped import RunningProcess


NUMBER = r"(0x[0-9a-fA-F]{1,16}|\d{1,20})"
"""The pattern of an address or an offset, which number() parses."""
WORD = (1 << 64) - 1


def number(text: str) -> int:
    """The number that ``NUMBER`` matches: decimal or 0x…; 010 is ten."""
    return integer(text, 16 if text.startswith("0x") else 10)


def register_value(session: Session, expression: str, instead: str) -> int | None:
    """A register of the selected thread (``$NAME``), or the word to which it points (``*$NAME``, ``*$NAME+8``); None
    for another expression. ``instead``: what the user can give instead. Raises UsageError, MemoryFault."""
    parts = re.fullmatch(rf"(\*?)\$(\w+)\s*(?:([+-])\s*{NUMBER})?", expression)
    if not parts:
        return None
    star, name, sign, offset = parts.groups()
    thread = session.target.memory.selected_thread()
    if not thread:
        raise UsageError("no thread is selected, so there are no registers", help=f"give {instead} itself")
    registers = thread.registers()
    if name not in registers:
        raise UsageError(f"there is no register {name!r}", help=f"registers are: {', '.join(sorted(registers))}")
    value = registers[name] + (number(offset) if offset else 0) * (-1 if sign == "-" else 1)
    return session.memory.u64(value & WORD) if star else value & WORD


def find_thread(target: Target, word: str) -> TargetThread:
    """The thread with this number in the debugger, or this tid. Raises UsageError."""
    threads = target.memory.threads()
    tids = ", ".join(str(thread.tid) for thread in threads[:8]) + (" …" if len(threads) > 8 else "")
    try:
        number = integer(word, 0)
    except ValueError:
        raise UsageError(f"{word!r} is neither a thread number nor a tid", help=f"tids are {tids}") from None
    for thread in threads:
        if number in (thread.number, thread.tid):
            return thread
    raise UsageError(f"no thread {number} in the target", why="it may have exited", help=f"tids are {tids}")


def running_thread(process: RunningProcess, word: str) -> int:
    """The tid of a thread of a process that is not stopped. Raises UsageError."""
    names = process.thread_names()
    tid = numbers.number(word)
    if tid is None or tid not in names:
        tids = ", ".join(f"{tid} ({name})" for tid, name in sorted(names.items())[:20])
        raise UsageError(f"there is no thread {word!r}", help=f"name one by its thread id: {tids}")
    return tid


TENSOR = re.compile(f"(?:tensor:|@){NUMBER}")
"""The spelling of a tensor in memory where keys are expected: ``tensor:0x7f12…``; group 1 is the address."""


def takes(option: argparse.Action) -> bool:
    """True if the argument has a value."""
    return option.nargs != 0


def takes_all(action: argparse.Action) -> bool:
    """True if all words up to the next option are its values."""
    return action.nargs in ("*", "+")


def names_file(action: argparse.Action) -> bool:
    """True if its value is the path of a file or of a folder."""
    return action.metavar in ("FILE", "DIR")


def positive(word: str) -> int:
    """A number greater than 0. Raises ArgumentTypeError."""
    try:
        number = integer(word)
    except ValueError:
        number = 0
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number greater than 0")
    return number


def add_thread_choice(parser: argparse.ArgumentParser) -> None:
    """Add ``--thread`` and ``--all``; ``chosen_threads`` evaluates them."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--thread", metavar="TID|N", help="show this thread only (default: the selected one)")
    which.add_argument("--all", action="store_true", help="show every thread")


def chosen_threads(target: Target, args: argparse.Namespace, command: str) -> list[TargetThread]:
    """The threads that ``add_thread_choice``'s arguments select. Raises UsageError."""

    if args.all:
        return list(target.memory.threads())
    if args.thread is not None:
        return [find_thread(target, args.thread)]
    selected = target.memory.selected_thread()
    if not selected:
        raise UsageError("no thread is selected", help=f"choose one with: {command} --thread TID, or use --all")
    return [selected]


WIDTH = 100
"""Columns of the help, fixed: the text is made before the terminal is known, and gdb does not wrap it."""


class CommandParser(argparse.ArgumentParser):
    """The parser of a command: it never prints or exits, but raises UsageError and HelpRequested."""

    def __init__(self, name: str, summary: str, shown: Collection[str] = ("--json", "--why")) -> None:
        """``shown``: those of --json and --why that have an effect; the help does not show the others."""
        super().__init__(
            prog=name,
            description=summary,
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=26, width=WIDTH),
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
        """For completion: the option or argument whose value the next word after ``words`` would be; None if none."""
        arguments = self.arguments()
        option: argparse.Action | None = None
        for word in words:
            if word.startswith("-"):
                named = (action for action in self.options() if word in action.option_strings and takes(action))
                option = next(named, None)
            elif option:
                option = option if takes_all(option) else None
            elif arguments and not takes_all(arguments[0]):
                del arguments[0]
        return option or next(iter(arguments), None)
