"""The command lines that gdb users and coredumpctl type (``EXE -c CORE``, ``EXE PID``, ``CORE``), as our options.

No such form starts EXE: it may be the training job that crashed. A program is started only after "--", or if the first
word is a program or a Python script and no other word could be a core, a process, a recording or an option of ours.
"""

from __future__ import annotations

import os
import stat
from itertools import chain
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.engine.formats import open_nonblocking
from gdbext.engine.terminal import quoted
from gdbext.errors import UsageError
from gdbext.tools import table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_RECORDING, _ELF, _PACKED = (
    b"\x89gdbrec\n",
    b"\x7fELF",
    (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"\x04\x22\x4d\x18", b"BZh"),
)
"""The first bytes of recordings (engine/targets/recording/container.py), of ELF files, and of files compressed by gzip,
zstd, xz, lz4 and bzip2."""
_ET_CORE, _TYPE, _BIG_ENDIAN = 4, slice(16, 18), b"\x02"
"""e_type of an ELF file, where it is, and EI_DATA of the byte order that is not ours (elf.h)."""
_STORE, _BY_PID = "systemd", "coredumpctl:"  # cores of systemd's store (engine/targets/core_sources.py)
_SOURCES = ("-p", "--pid", "-c", "--core", "-r", "--recording")
_WORDS = ("attach", "-h", "--help", "-V", "--version")
"""Words with a meaning of ours that are neither options of the launcher nor names of commands."""


def as_options(words: Sequence[str], valued: Collection[str], flags: Collection[str]) -> tuple[list[str], str]:
    """The command line with -p, -c, -r or "--", and the EXE that was named beside a core or a process, "" for none.
    ``valued``: our options with a value, ``flags``: those without. Raises UsageError if no meaning fits."""
    words = [_gdb_option(word) for word in words]
    places = _free_word_indexes(words, valued)
    if not places or table.is_command(words[places[0]]):
        return words, ""
    first, rest = places[0], places[1:]
    word = words[first]
    if word == "attach" and rest:
        return as_options([*words[:first], "-p", *words[first + 1 :]], valued, flags)
    has_source = any(each.partition("=")[0] in _SOURCES for each in words)
    option = "" if has_source else source_option(word)
    if option:
        return as_options([*words[:first], option, *words[first:]], valued, flags)
    option = source_option(words[rest[0]]) if rest and not has_source else ""
    if has_source or option:
        if not (is_startable(word) or "/" in word or os.path.isfile(word)):  # noqa: PTH113
            return words, ""
        source_at = rest[0] if option else first + 1
        added = [option] if option else []
        return [*words[:first], *words[first + 1 : source_at], *added, *words[source_at:]], word
    if not is_startable(word):
        return words, ""
    _check_startable(words, first, {*valued, *flags})
    return ["--", *_start_words(words)], ""


def _gdb_option(word: str) -> str:
    """gdb takes its long options with one dash, too: ``-pid=7`` is ``--pid=7``."""
    name, equals, value = word.partition("=")
    return f"-{name}{equals}{value}" if name in ("-pid", "-core") else word


def _check_startable(words: Sequence[str], first: int, options: Collection[str]) -> None:
    """Raises UsageError if the words beside the program, which is the word at ``first``, may be meant for us."""
    before, after = words[:first], words[first + 1 :]
    known = set(options)
    if after:
        actions = table.parser_of(table.find(table.DEFAULT)).options()
        known |= {name for action in actions for name in action.option_strings}
    doubtful = next((each for each in chain(before, after) if _may_be_ours(each, known)), before[0] if before else "")
    if doubtful:
        raise UsageError(
            f"not clear whether to start {words[first]}: "
            f"{doubtful} may be an option, a command, a core or a process of ours",
            help=" ".join(("dispatch", *(each for each in before if each in options), start_line(words[first:]))),
        )


def start_line(words: Sequence[str]) -> str:
    """The end of the command line that starts a program without doubt."""
    return " ".join(quoted(word) for word in ("--", *_start_words(words)))


def _may_be_ours(word: str, options: Collection[str]) -> bool:
    name, _, value = word.partition("=")
    return (
        name in options
        or word in _WORDS
        or bool(source_option(word))
        or (word.startswith("-") and source_option(value) in ("-c", "-r"))
        or (word.startswith(("-p", "-c", "-r")) and bool(source_option(word[2:])))
        or table.is_command(word)
        or table.program(word) is not None
    )


def _free_word_indexes(words: Sequence[str], valued: Collection[str]) -> list[int]:
    """The places of the words that are neither options nor the values of ours."""
    places, skips = [], False
    for place, word in enumerate(words):
        if skips:
            skips = False
        elif word.startswith("-"):
            skips = word in valued
        else:
            places.append(place)
    return places


def source_option(word: str) -> str:
    """The option for what the word names: -p for a number, -c for a core, -r for a recording; "" for anything else.

    A name such as core.1234 counts if the file is not there: the error is to be about that file. So does what may be
    one and cannot be told: an empty or a cut file, one that we may not read, a pipe (which is not opened).
    """
    if word.isdecimal():
        return "-p"
    if word == _STORE or word.startswith(_BY_PID):
        return "-c"
    by_name = "-r" if word.endswith(".rec") else "-c"
    try:
        mode = os.stat(word).st_mode  # noqa: PTH116
        if not stat.S_ISREG(mode):
            return by_name if _names_evidence(word) or not stat.S_ISDIR(mode) else ""
        with open(word, "rb", opener=open_nonblocking) as file:
            head = file.read(_TYPE.stop)
    except PermissionError:
        return "" if os.access(word, os.X_OK) else by_name
    except (OSError, ValueError):
        return by_name if _names_evidence(word) else ""
    if head.startswith(_RECORDING):
        return "-r"
    if head.startswith(_PACKED) or _is_core(head):
        return "-c"
    if word.endswith(".py") or os.access(word, os.X_OK):
        return ""
    if head and _RECORDING.startswith(head):
        return "-r"
    is_cut = any(magic.startswith(head) for magic in (_ELF, *_PACKED))
    return by_name if is_cut or _names_evidence(word) else ""


def _is_core(head: bytes) -> bool:
    """An ELF core of either byte order, or an ELF file that ends before it says what it is."""
    kind = int.from_bytes(head[_TYPE], "big" if head[5:6] == _BIG_ENDIAN else "little")
    return head.startswith(_ELF) and (len(head) < _TYPE.stop or kind == _ET_CORE)


def _names_evidence(word: str) -> bool:
    """The name is one that cores and recordings have: core, core7392, core_7392, train.core.zst, hung.rec."""
    parts = word.rpartition("/")[2].replace("-", ".").replace("_", ".").split(".")
    numbered = parts[0].startswith("core") and parts[0][4:].isdecimal()
    return numbered or "core" in parts or parts[-1] == "rec"


def is_startable(word: str) -> bool:
    """The shell would start something by that word, or it is a Python script."""
    folders = [""] if "/" in word else [f"{each}/" for each in os.environ.get("PATH", "").split(os.pathsep) if each]
    is_program = any(os.access(folder + word, os.X_OK) and os.path.isfile(folder + word) for folder in folders)  # noqa: PTH113
    return is_program or _is_script(word)


def _is_script(word: str) -> bool:
    return word.endswith(".py") and os.path.isfile(word)  # noqa: PTH113


def _start_words(words: Sequence[str]) -> list[str]:
    """The words that start it: a script by Python."""
    if not _is_script(words[0]) or (os.access(words[0], os.X_OK) and "/" in words[0]):
        return list(words)
    return ["python" if find_program("python") else "python3", *words]
