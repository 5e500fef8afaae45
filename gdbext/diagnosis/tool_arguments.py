"""Command lines of the commands: one parser each, the same for gdb, lldb and scripts/dispatch; addresses and threads as
users write them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gdbext.engine import numbers
from gdbext.engine.numbers import integer
from gdbext.errors import HelpRequested, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from gdbext.diagnosis.command_parser import ArgparseParser, Declaration
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import Target, TargetThread
    from gdbext.engine.targets.live.unstopped import RunningProcess

NUMBER = r"(0x[0-9a-fA-F]{1,16}|\d{1,20})"
"""The pattern of an address or an offset; ``number`` takes it."""
WORD = (1 << 64) - 1
_REGISTER = re.compile(rf"(\*?)\$(\w+)\s*(?:([+-])\s*{NUMBER})?")


def number(text: str) -> int:
    """The number that ``NUMBER`` matches, as C's programmers mean it but without octal: 010 is ten."""
    return integer(text, 16 if text.startswith("0x") else 10)


def register_value(session: Session, expression: str, instead: str) -> int | None:
    """``$NAME``, ``*$NAME``, ``*$NAME+8``: a register of the selected thread, or the word that it points at.

    None where the expression is none of these. ``instead`` is what the user can give where no thread is selected.
    Raises UsageError, MemoryFault.
    """
    found = _REGISTER.fullmatch(expression)
    if not found:
        return None
    star, name, sign, offset = found.groups()
    thread = session.target.selected_thread()
    if not thread:
        raise UsageError("no thread is selected, so there are no registers", help=f"give {instead} itself")
    registers = thread.registers()
    if name not in registers:
        raise UsageError(f"there is no register {name!r}", help=f"registers are: {', '.join(sorted(registers))}")
    value = registers[name] + (number(offset) if offset else 0) * (-1 if sign == "-" else 1)
    return session.memory.u64(value & WORD) if star else value & WORD


def find_thread(target: Target, word: str) -> TargetThread:
    """The thread with that number in the debugger, or that tid. Raises UsageError."""
    threads = target.threads()
    known = ", ".join(str(thread.tid) for thread in threads[:8]) + (" …" if len(threads) > 8 else "")
    try:
        number = integer(word, 0)
    except ValueError:
        raise UsageError(f"{word!r} is neither a thread number nor a tid", help=f"tids are {known}") from None
    for thread in threads:
        if number in (thread.number, thread.tid):
            return thread
    raise UsageError(f"no thread {number} in the target", why="it may have ended", help=f"tids are {known}")


def running_thread(process: RunningProcess, word: str) -> int:
    """The tid of a thread of a process that nobody stops. Raises UsageError."""
    names = process.thread_names()
    tid = numbers.number(word)
    if tid is None or tid not in names:
        known = ", ".join(f"{tid} ({name})" for tid, name in sorted(names.items())[:20])
        raise UsageError(f"there is no thread {word!r}", help=f"name one by its thread id: {known}")
    return tid


TENSOR = re.compile(f"(?:tensor:|@){NUMBER}")
"""The spelling of a tensor in memory where keys are expected: ``tensor:0x7f12…``; group 1 is the address."""


_OF_ALL = {
    "--json": "print one JSON document (schema gdbext/1) instead of text",
    "--why": "also show the evidence for each statement",
}
"""The options that every command takes."""
HIDDEN = "==SUPPRESS=="
"""The help of an option that no help shows: argparse.SUPPRESS, which is not imported for it."""


if TYPE_CHECKING:
    _Declared = argparse.ArgumentParser
else:
    _Declared = object


class CommandParser(_Declared):
    """The parser of a command: it never prints or exits, but raises UsageError and HelpRequested.

    Arguments are declared as for argparse. Where nothing but flags is given, which is the ordinary look, their values
    are known without it; argparse, which takes 12 ms to import, parses all else, and makes all texts.
    """

    def __init__(self, name: str, summary: str, shown: Collection[str] = ("--json", "--why")) -> None:
        """``shown``: those of the two options of all commands that change something, the others are not in the help."""
        self.prog = name
        self.description: str | None = summary
        self.epilog: str | None = None
        self._declarations: list[Declaration] = []
        self._groups = 0
        self.add_argument("--help", "-h", action="store_true", help="show this text")
        for option, text in _OF_ALL.items():
            self.add_argument(option, action="store_true", help=text if option in shown else HIDDEN)

    def add_argument(self, *names: str, **options: Any) -> Any:
        """Declare an argument, as for argparse."""
        self._declarations.append((0, names, options))

    def add_mutually_exclusive_group(self, **_: Any) -> Any:
        """Something with ``add_argument`` for options of which one may be given."""
        self._groups += 1
        return _Alternatives(self._declarations, self._groups)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse a command's arguments. Raises UsageError, HelpRequested."""
        if "--help" in argv or "-h" in argv:
            raise HelpRequested(self.format_help())
        flags = flags_of(self._declarations, argv)
        return self.full().parse(argv) if flags is None else flags

    def full(self) -> ArgparseParser:
        """The same parser as one of argparse."""
        from gdbext.diagnosis.command_parser import ArgparseParser

        return ArgparseParser(self.prog, self.description, self.epilog, self._declarations)

    def format_help(self) -> str:
        """The text that --help shows."""
        return self.full().format_help()

    def option_names(self) -> list[str]:
        """All long options, for completion."""
        return self.full().option_names()

    def format_arguments_help(self, summary: str) -> str:
        """The help without usage, options and ``summary``, for a debugger that shows those itself."""
        return self.full().format_arguments_help(summary)

    def options(self) -> list[argparse.Action]:
        """All that begin with a dash."""
        return self.full().options()

    def awaited(self, words: Sequence[str]) -> argparse.Action | None:
        """The option or argument that a word behind these would be a value of."""
        return self.full().awaited(words)


class _Alternatives:
    """Takes declarations for one group of a parser."""

    def __init__(self, declarations: list[Declaration], group: int) -> None:
        self._declarations = declarations
        self._group = group

    def add_argument(self, *names: str, **options: Any) -> None:
        """Declare an option of the group."""
        self._declarations.append((self._group, names, options))


class Flags:
    """Arguments as argparse.Namespace has them: an attribute for each."""

    def __init__(self, values: dict[str, object]) -> None:
        self.__dict__.update(values)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def flags_of(declarations: Sequence[Declaration], argv: Sequence[str]) -> Any:
    """The result of argparse for ``argv`` where that is nothing but flags, each in full; None where only argparse
    knows.

    That is: where there are arguments without a dash, an option with a value, one that must be given, a default that
    argparse would convert, or two of which only one may be given.
    """
    values: dict[str, object] = {}
    groups: dict[str, tuple[int, str]] = {}
    for group, names, options in declarations:
        if not names[0].startswith("-") or options.get("required") or _is_converted(options):
            return None
        is_flag = options.get("action") == "store_true"
        name = str(options.get("dest") or _longest(names).lstrip("-").replace("-", "_"))
        values[name] = options.get("default", False if is_flag else None)
        if is_flag:
            groups.update(dict.fromkeys(names, (group, name)))
    given: dict[int, str] = {}
    for word in argv:
        group, name = groups.get(word, (0, ""))
        if not name or (group and given.setdefault(group, name) != name):
            return None
        values[name] = True
    return Flags(values)


def _longest(names: Sequence[str]) -> str:
    """The name that argparse makes an attribute of: the first long one."""
    return next((name for name in names if name.startswith("--")), names[0])


def _is_converted(options: Mapping[str, object]) -> bool:
    return isinstance(options.get("default"), str) and "type" in options


def takes(option: argparse.Action) -> bool:
    """True if the argument has a value."""
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
        number = integer(word)
    except ValueError:
        number = 0
    if number <= 0:
        import argparse

        raise argparse.ArgumentTypeError(f"{word!r} is not a number greater than 0")
    return number


def add_thread_choice(parser: argparse.ArgumentParser) -> None:
    """``--thread`` and ``--all``, of which ``chosen_threads`` makes threads."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--thread", metavar="TID|N", help="show this thread only (default: the selected one)")
    which.add_argument("--all", action="store_true", help="show every thread")


def chosen_threads(target: Target, args: argparse.Namespace, command: str) -> list[TargetThread]:
    """The threads that a command is about. Raises UsageError."""

    if args.all:
        return list(target.threads())
    if args.thread is not None:
        return [find_thread(target, args.thread)]
    selected = target.selected_thread()
    if not selected:
        raise UsageError("no thread is selected", help=f"choose one with: {command} --thread TID, or use --all")
    return [selected]
