"""Makes text safe for the terminal (only text, newlines, tabs and our own colors pass), and writes suggested commands.

Everything that is printed goes through ``shown``: names, paths and lines of source come from the examined process and
its files, and a terminal obeys escape sequences. Controls, bidi marks (which change the displayed order) and invisible
characters become escapes.

Views write colors as marks: characters that Unicode reserves as never being text (U+FDD0 to U+FDEF). A view's escape()
makes escapes of those in foreign text; if a view forgets that, they become colors, but no other control sequence.
"""

from __future__ import annotations

import os
import re
import shlex
import sys

_CODES = (*"01234", *map(str, (*range(30, 38), *range(90, 98))))
"""Codes of ECMA-48's SGR: reset; bold, dim, italic, underlined; the colors of letters. None hides text."""
MARKS = {code: chr(0xFDD0 + number) for number, code in enumerate(_CODES)}  # SGR code → the mark that stands for it
_SEQUENCES = {mark: f"\x1b[{code}m" for code, mark in MARKS.items()}
_SINGLE_INVISIBLE = (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0)
_INVISIBLE = frozenset(
    map(chr, (*_SINGLE_INVISIBLE, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)
"""Default_Ignorable_Code_Point (Unicode, DerivedCoreProperties.txt) that isprintable() accepts."""
_ASCII_CONTROLS = (*map(chr, range(0x20)), "\x7f")


def shown(text: str) -> str:
    """``text`` for a terminal: color sequences in place of marks, and escapes in place of other characters that are no
    text."""
    return _replaced(text, "\n\t", _SEQUENCES)


def escape(text: str) -> str:
    """``text`` in a single line, with escapes in place of controls, marks and invisible characters."""
    if text.isascii() and text.isprintable():
        return text
    return _replaced(text, "", {})


def environment_value(text: str) -> bytes:
    """Foreign text as the value of an environment variable: one line without controls, short enough for execve(2), in
    UTF-8."""
    return cut(escape(text), 4096).encode()


def cut(text: str, width: int) -> str:
    """The text truncated to ``width`` characters, with "…" at the end if it is longer."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def one_line(text: str) -> str:
    """``text``, which may contain marks of colors, with escapes in place of its line feeds."""
    return text.replace("\n", "\\x0a") if "\n" in text else text


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most ``width`` characters, broken at words; continuation lines are indented. A long word
    stays whole, so that it can be selected."""
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
    """A JSON document in ASCII for a terminal, with an escape in place of DEL."""
    return document.replace("\x7f", "\\u007f")


def is_text(char: str) -> bool:
    """True if the character is visible and no control."""
    return char.isprintable() and char not in _INVISIBLE


def escaped(char: str) -> str:
    """The character as an escape of Python: ``\\x1b``, ``\\u202e``."""
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _replaced(text: str, allowed: str, marks: dict[str, str]) -> str:
    """``text`` with ``marks`` replaced by their values, and escapes in place of other characters that are no text,
    except those in ``allowed``."""
    chars = {char for char in _ASCII_CONTROLS if char in text} if text.isascii() else set(text)
    table = {char: escaped(char) for char in chars if not is_text(char) and char not in allowed and char not in marks}
    table.update({mark: marks[mark] for mark in chars & marks.keys()})  # last: they bring an escape character
    if len(table) > 64:  # so many calls of replace() would be slow
        # as str.translate does, which takes a microsecond for each character that is not ASCII
        pieces = (text[at : at + (1 << 16)] for at in range(0, len(text), 1 << 16))
        return "".join("".join([table.get(char, char) for char in piece]) for piece in pieces)
    for char, replacement in table.items():
        text = text.replace(char, replacement)
    return text


def write(fd: int, text: str) -> None:
    """Write text to an fd, without Python's buffers, which would raise the same error once more at exit. Raises
    OSError."""
    data = shown(text).encode()
    while data:
        data = data[os.write(fd, data) :]


PROGRAM = "scripts/dispatch"  # the program's name if the user did not type it: in a debugger, and for the library
TYPED = "GDBEXT_TYPED"  # the environment variable in which scripts/dispatch passes its own name as the user typed it


class CommandLine:
    """Writes suggested commands so that they can be pasted: in a debugger alone, in a shell behind the program and its
    target, as the user typed these."""

    def __init__(self, program: str = PROGRAM, source: str = "", may_run: bool = True) -> None:
        """``source``: the options that name the target, ``-p 7392``; "" in a debugger; ``-- PROGRAM …`` for a program
        that has to be started again. ``may_run``: the target still exists."""
        self.program = program
        self.source = source
        self._starts = source.startswith("-- ")
        self.may_run = may_run and not self._starts

    def command(self, words: str) -> str:
        """The command line for another inspection of the same target, by the command in ``words``. If it starts the
        program again, ``--thread`` is dropped."""
        if self._starts:
            before, _option, after = words.partition(" --thread ")
            return " ".join(filter(None, (self.program, before, after.partition(" ")[2], self.source)))
        return " ".join(filter(None, (self.program, self.source, words))) if self.source else words

    def with_own_files(self, words: str) -> str:
        """The command line for another inspection of the same core, with this machine's files."""
        return " ".join((self.program, self.source or "-c CORE", "--sysroot /", words))

    def complete_commands(self, text: str) -> str:
        """A text of ours with a complete command line in place of each command at its beginning, behind a colon or
        behind three spaces."""
        return re.sub(_COMMAND, lambda match: self.command(match[0]), text) if self.source else text

    def outside(self, words: str) -> str:
        """The command line for ``words`` in a shell, without the target."""
        return f"{self.program} {words}"


_COMMAND = r"(?:(?<=: )|(?<=   )|^)(?:dispatch-[a-z]+|all-threads)(?= |$)"
IN_A_DEBUGGER = CommandLine()


def quoted(word: str) -> str:
    """The word quoted for a shell, if it needs that."""
    if all(letter.isalnum() or letter in "/._-+=:@%" for letter in word) and word:
        return word
    return shlex.quote(word)


def typed_name(argument: str) -> str:
    """The program's name as the user typed it; ``argument`` is sys.argv[0]."""
    typed = os.environ.pop(TYPED, "")
    if typed:
        return _shortest(typed)
    if os.path.basename(argument) in ("__main__.py", "-m", "-c", ""):  # noqa: PTH119 - pathlib takes 10 ms to import
        return "python3 -m gdbext"
    if argument.endswith(".pyz"):
        return f"{os.path.basename(sys.executable) or 'python3'} {quoted(argument)}"  # noqa: PTH119
    return _shortest(argument)


def _shortest(path: str) -> str:
    """The file's name, if a shell finds that very file by it; else the quoted path."""
    name = os.path.basename(path)  # noqa: PTH119
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        candidate = f"{folder}/{name}"
        if os.access(candidate, os.X_OK):
            return name if os.path.realpath(candidate) == os.path.realpath(path) else quoted(path)
    return quoted(path)
