"""The door to the terminal: text, newlines, tabs and our own colours pass, nothing else.

Everything that is written for people goes through ``shown``, whatever the views have done: names, paths and lines of
source come from the examined process and its files, and a terminal obeys what it is told. Controls, marks of direction
(which show text in another order than it has) and characters that nobody sees are shown as escapes.

Colours are marks until here: characters of which Unicode says that they are never text (U+FDD0 to U+FDEF). The views'
escape() shows those in foreign text as escapes, too; where a view forgot, they are colours, and still no orders.

The words by which our commands are called, so that what is suggested can be pasted: in a debugger that the user works
in they stand by themselves; in a shell the program and what it looks at come before them, as they were typed.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from itertools import repeat

_CODES = (
    "0",
    "1",
    "2",
    "3",
    "4",
    "30",
    "31",
    "32",
    "33",
    "34",
    "35",
    "36",
    "37",
    "90",
    "91",
    "92",
    "93",
    "94",
    "95",
    "96",
    "97",
)
"""Codes of ECMA-48's SGR: reset; bold, dim, italic, underlined; the colours of letters. None hides text."""
MARKS = {code: chr(0xFDD0 + number) for number, code in enumerate(_CODES)}
"""SGR code to the mark that stands for it."""
_SEQUENCES = {mark: f"\x1b[{code}m" for code, mark in MARKS.items()}
_UNSEEN = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFFA0, 0xFFA0),
        (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)
"""Default_Ignorable_Code_Point (Unicode, DerivedCoreProperties.txt) of the categories that isprintable() lets pass."""
_ASCII_CONTROLS = (*map(chr, range(0x20)), "\x7f")
_MANY = 64
"""Different characters; more than that are replaced where they stand, and not each everywhere."""
_PIECE = 1 << 16


def shown(text: str) -> str:
    """``text`` as it may be written to a terminal: with colours for their marks, and escapes for what is no text."""
    return _replaced(text, "\n\t", _SEQUENCES)


def escape(text: str) -> str:
    """``text`` in a single line, without a control, a mark or an unseen character: these are shown as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return _replaced(text, "", {})


_LONGEST_VALUE = 4096


def environment_value(text: str) -> bytes:
    """Foreign text as the value of an environment variable: one line without a control, short enough for execve(2),
    in UTF-8 whatever the locale is."""
    return cut(escape(text), _LONGEST_VALUE).encode()


def cut(text: str, width: int) -> str:
    """The text in at most ``width`` characters, with "…" at the end where it has more."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def one_line(text: str) -> str:
    """``text``, marks of colours included, with escapes for the line feeds in it."""
    return text.replace("\n", "\\x0a") if "\n" in text else text


def wrapped(text: str, width: int) -> str:
    """The text with lines of at most ``width`` characters, broken at words, what follows indented; a longer word stays
    whole, so that it can be selected."""
    return "".join(map(_broken, text.splitlines(keepends=True), repeat(width)))


def _broken(line: str, width: int) -> str:
    indent = " " * min(len(line) - len(line.lstrip(" ")) + 2, width // 2)
    pieces = []
    while len(line.rstrip("\n")) > width:
        start = len(line) - len(line.lstrip(" "))
        at = line.rfind(" ", start, width + 1)
        at = at if at > start else line.find(" ", width)
        if at < 0:
            break
        pieces.append(line[:at].rstrip(" ") + "\n")
        line = indent + line[at:].lstrip(" ")
    return "".join((*pieces, line))


def shown_json(document: str) -> str:
    """A JSON document in ASCII as it may be written to a terminal: json.dumps leaves DEL as it is."""
    return document.replace("\x7f", "\\u007f")


def is_text(char: str) -> bool:
    """The character is seen, stands where it stands, and orders nothing."""
    return char.isprintable() and char not in _UNSEEN


def escaped(char: str) -> str:
    """The character as Python writes it in a string."""
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _each_replaced(text: str, table: dict[str, str]) -> str:
    """Replace as str.translate does, which takes a microsecond for each character that is not ASCII."""
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return "".join("".join([table.get(char, char) for char in piece]) for piece in pieces)


def _replaced(text: str, allowed: str, marks: dict[str, str]) -> str:
    found = {char for char in _ASCII_CONTROLS if char in text} if text.isascii() else set(text)
    table = {char: escaped(char) for char in found if not is_text(char) and char not in allowed and char not in marks}
    table.update({mark: marks[mark] for mark in found & marks.keys()})  # last: they bring an escape character
    if len(table) > _MANY:
        return _each_replaced(text, table)
    for char, seen in table.items():
        text = text.replace(char, seen)
    return text


def write(descriptor: int, text: str) -> None:
    """Text for people to a descriptor, past Python's buffers, which would complain once more at exit. Raises
    OSError."""
    data = shown(text).encode()
    while data:
        data = data[os.write(descriptor, data) :]


PROGRAM = "scripts/dispatch"
"""The program's name where nobody has called it: in a debugger, and for the library."""
TYPED = "GDBEXT_TYPED"
"""The environment variable in which scripts/dispatch notes the name by which it was called: Python sees only what it
starts."""


class CommandLine:
    """The words by which the command that makes a report was called, and so by which others can be.

    ``program`` is ours as it was typed. ``source``: the options that say what was looked at, ``-p 7392``; "" in a
    debugger; ``-- PROGRAM …`` for one that was started, which is gone afterwards, and started again for another look.
    ``may_run``: it can be looked at again as it is.
    """

    __slots__ = ("may_run", "program", "source")

    def __init__(self, program: str = PROGRAM, source: str = "", may_run: bool = True) -> None:
        self.program = program
        self.source = source
        self.may_run = may_run and not self._starts

    @property
    def _starts(self) -> bool:
        return self.source.startswith("-- ")

    def command(self, words: str) -> str:
        """The command line for another look at the same; one that starts it once more knows no thread of it."""
        if self._starts:
            before, _option, after = words.partition(" --thread ")
            return " ".join(filter(None, (self.program, before, after.partition(" ")[2], self.source)))
        return " ".join(filter(None, (self.program, self.source, words))) if self.source else words

    def vouched(self, words: str) -> str:
        """The command line for another look at the same core, with this machine's files."""
        return " ".join((self.program, self.source or "-c CORE", "--sysroot /", words))

    def pasted(self, text: str) -> str:
        """A text of ours in which each command that stands at its beginning, or behind a colon or three spaces, is a
        whole command line."""
        if not self.source:
            return text
        return re.sub(_COMMAND, lambda found: self.command(found[0]), text)

    def outside(self, words: str) -> str:
        """The command line for something else, which only a shell takes."""
        return f"{self.program} {words}"


_COMMAND = r"(?:(?<=: )|(?<=   )|^)(?:dispatch-[a-z]+|all-threads)(?= |$)"
IN_A_DEBUGGER = CommandLine()
"""Commands stand by themselves there."""


def quoted(word: str) -> str:
    """The word as a shell takes it."""
    if all(letter.isalnum() or letter in "/._-+=:@%" for letter in word) and word:
        return word
    return shlex.quote(word)


def typed_name(argument: str) -> str:
    """The program as it was called; ``argument`` is sys.argv[0]."""
    typed = os.environ.pop(TYPED, "")
    if typed:
        return _shortest(typed)
    if os.path.basename(argument) in ("__main__.py", "-m", "-c", ""):  # noqa: PTH119 - pathlib takes 10 ms to import
        return "python3 -m gdbext"
    if argument.endswith(".pyz"):
        return f"{os.path.basename(sys.executable) or 'python3'} {quoted(argument)}"  # noqa: PTH119
    return _shortest(argument)


def _shortest(path: str) -> str:
    """The name alone where the shell finds that very file by it."""
    name = os.path.basename(path)  # noqa: PTH119
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = f"{folder}/{name}"
        if os.access(found, os.X_OK):
            return name if os.path.realpath(found) == os.path.realpath(path) else quoted(path)
    return quoted(path)
