"""Values on the command lines of the commands: numbers, registers, addresses and threads as users write them."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from gdbext.engine import numbers
from gdbext.engine.numbers import integer
from gdbext.errors import UsageError

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import Target, TargetThread
    from gdbext.engine.targets.live.unstopped import RunningProcess

NUMBER = r"(0x[0-9a-fA-F]{1,16}|\d{1,20})"
"""The pattern of an address or an offset; ``number`` takes it."""


WORD = (1 << 64) - 1


def number(text: str) -> int:
    """The number that ``NUMBER`` matches, as C's programmers mean it but without octal: 010 is ten."""
    return integer(text, 16 if text.startswith("0x") else 10)


def register_value(session: Session, expression: str, instead: str) -> int | None:
    """``$NAME``, ``*$NAME``, ``*$NAME+8``: a register of the selected thread, or the word to which it points.

    None if the expression is none of these. ``instead``: what the user can give if no thread is selected.
    Raises UsageError, MemoryFault.
    """
    parts = re.fullmatch(rf"(\*?)\$(\w+)\s*(?:([+-])\s*{NUMBER})?", expression)
    if not parts:
        return None
    star, name, sign, offset = parts.groups()
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
    """The tid of a thread of a process that is not stopped. Raises UsageError."""
    names = process.thread_names()
    tid = numbers.number(word)
    if tid is None or tid not in names:
        known = ", ".join(f"{tid} ({name})" for tid, name in sorted(names.items())[:20])
        raise UsageError(f"there is no thread {word!r}", help=f"name one by its thread id: {known}")
    return tid


TENSOR = re.compile(f"(?:tensor:|@){NUMBER}")
"""The spelling of a tensor in memory where keys are expected: ``tensor:0x7f12…``; group 1 is the address."""


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
        return list(target.threads())
    if args.thread is not None:
        return [find_thread(target, args.thread)]
    selected = target.selected_thread()
    if not selected:
        raise UsageError("no thread is selected", help=f"choose one with: {command} --thread TID, or use --all")
    return [selected]
