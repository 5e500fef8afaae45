"""The door to the terminal: text, newlines, tabs and our own colors pass, nothing else; and our commands as they are
typed there.

Everything that is written for people goes through ``shown``, whatever the views have done: names, paths and lines of
source come from the examined process and its files, and a terminal obeys escape sequences. Controls, marks of direction
(which show text in another order than it has) and invisible characters are shown as escapes.

Colors are marks until here: characters of which Unicode says that they are never text (U+FDD0 to U+FDEF). The views'
escape() shows those in foreign text as escapes, too; where a view forgot, they are colors, and still no orders.
"""

from __future__ import annotations

import os
import re
import shlex
import sys

_CODES = (*"01234", *map(str, (*range(30, 38), *range(90, 98))))
"""Codes of ECMA-48's SGR: reset; bold, dim, italic, underlined; the colors of letters. None hides text."""
MARKS = {code: chr(0xFDD0 + number) for number, code in enumerate(_CODES)}
"""SGR code to the mark that stands for it."""
_SEQUENCES = {mark: f"\x1b[{code}m" for code, mark in MARKS.items()}
_INVISIBLE = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0),
            *(*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)),
        ),
    )
)
"""Default_Ignorable_Code_Point (Unicode, DerivedCoreProperties.txt) of the categories that isprintable() lets pass."""
_ASCII_CONTROLS = (*map(chr, range(0x20)), "\x7f")
_MANY = 64
"""Different characters; more than that are replaced one after the other, and not each everywhere."""
_PIECE = 1 << 16


def shown(text: str) -> str:
    """``text`` as it may be written to a terminal: with colors for their marks, and escapes for what is no text."""
    return _replaced(text, "\n\t", _SEQUENCES)


def escape(text: str) -> str:
    """``text`` in a single line, without a control, a mark or an unseen character: these are shown as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return _replaced(text, "", {})


def environment_value(text: str) -> bytes:
    """Foreign text as the value of an environment variable: one line without a control, short enough for execve(2),
    in UTF-8 whatever the locale is."""
    return cut(escape(text), 4096).encode()


def cut(text: str, width: int) -> str:
    """The text in at most ``width`` characters, with "…" at the end where it has more."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def one_line(text: str) -> str:
    """``text``, marks of colors included, with escapes for the line feeds in it."""
    return text.replace("\n", "\\x0a") if "\n" in text else text


def wrapped(text: str, width: int) -> str:
    """The text with lines of at most ``width`` characters, broken at words, what follows indented; a longer word stays
    whole, so that it can be selected."""
    pieces = []
    for line in text.splitlines(keepends=True):
        indent = " " * min(len(line) - len(line.lstrip(" ")) + 2, width // 2)
        while len(line.rstrip("\n")) > width:
            start = len(line) - len(line.lstrip(" "))
            at = line.rfind(" ", start, width + 1)
            at = at if at > start else line.find(" ", width)
            if at < 0:
                break
            pieces.append(line[:at].rstrip(" ") + "\n")
            line = indent + line[at:].lstrip(" ")
        pieces.append(line)
    return "".join(pieces)


def shown_json(document: str) -> str:
    """A JSON document in ASCII as it may be written to a terminal: json.dumps leaves DEL as it is."""
    return document.replace("\x7f", "\\u007f")


def is_text(char: str) -> bool:
    """True if the character is visible, keeps its place, and controls nothing."""
    return char.isprintable() and char not in _INVISIBLE


def escaped(char: str) -> str:
    """The character as Python writes it in a string."""
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _replaced(text: str, allowed: str, marks: dict[str, str]) -> str:
    """The text with escapes for what is no text, other than ``allowed`` characters and ``marks``, which are replaced by
    their values."""
    chars = {char for char in _ASCII_CONTROLS if char in text} if text.isascii() else set(text)
    table = {char: escaped(char) for char in chars if not is_text(char) and char not in allowed and char not in marks}
    table.update({mark: marks[mark] for mark in chars & marks.keys()})  # last: they bring an escape character
    if len(table) > _MANY:
        # as str.translate does, which takes a microsecond for each character that is not ASCII
        pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
        return "".join("".join([table.get(char, char) for char in piece]) for piece in pieces)
    for char, replacement in table.items():
        text = text.replace(char, replacement)
    return text


def write(fd: int, text: str) -> None:
    """Write text for people to an fd, past Python's buffers, which would complain once more at exit. Raises
    OSError."""
    data = shown(text).encode()
    while data:
        data = data[os.write(fd, data) :]


PROGRAM = "scripts/dispatch"
"""The program's name where it was not typed: in a debugger, and for the library."""
TYPED = "GDBEXT_TYPED"
"""The environment variable in which scripts/dispatch notes the name by which it was called: Python sees only what it
starts."""


class CommandLine:
    """The words that call the command that makes a report, and so other commands: what is suggested can be pasted.

    In a debugger that the user works in, commands stand by themselves; in a shell, the program and its target come
    before them, as they were typed.
    """

    __slots__ = ("_starts", "may_run", "program", "source")

    def __init__(self, program: str = PROGRAM, source: str = "", may_run: bool = True) -> None:
        """``source``: the options that name the target, ``-p 7392``; "" in a debugger; ``-- PROGRAM …`` for one that
        was started, and has to be started again. ``may_run``: the target is still there."""
        self.program = program
        self.source = source
        self._starts = source.startswith("-- ")
        self.may_run = may_run and not self._starts

    def command(self, words: str) -> str:
        """The command line for another inspection of the same target; one that starts it once more knows no thread of
        it."""
        if self._starts:
            before, _option, after = words.partition(" --thread ")
            return " ".join(filter(None, (self.program, before, after.partition(" ")[2], self.source)))
        return " ".join(filter(None, (self.program, self.source, words))) if self.source else words

    def vouched(self, words: str) -> str:
        """The command line for another inspection of the same core, with this machine's files."""
        return " ".join((self.program, self.source or "-c CORE", "--sysroot /", words))

    def pasted(self, text: str) -> str:
        """A text of ours in which each command that stands at its beginning, or behind a colon or three spaces, is a
        whole command line."""
        return re.sub(_COMMAND, lambda match: self.command(match[0]), text) if self.source else text

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
        candidate = f"{folder}/{name}"
        if os.access(candidate, os.X_OK):
            return name if os.path.realpath(candidate) == os.path.realpath(path) else quoted(path)
    return quoted(path)
