"""The command lines that gdb users and coredumpctl type (``EXE -c CORE``, ``EXE PID``, ``CORE``), as our options.

No such form starts EXE: it may be the training job that crashed. A program is started only after "--", or if the first
word is a program or a Python script and no other word could be a core, a process, a recording or an option of ours.
"""

from __future__ import annotations

import os

from gdbext.cache import find_program
from gdbext.engine.formats import at_once
from gdbext.errors import UsageError
from gdbext.tools import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_RECORDING, _ELF, _PACKED = (
    b"\x89gdbrec\n",
    b"\x7fELF",
    (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"\x04\x22\x4d\x18", b"BZh"),
)
"""The first bytes of recordings (engine/targets/recording/container.py), of ELF files, and of files compressed by gzip,
zstd, xz, lz4 and bzip2."""
_ET_CORE, _TYPE = b"\x04\0", slice(16, 18)
"""e_type of an ELF file, little-endian (elf.h)."""
_SOURCES = ("-p", "--pid", "-c", "--core", "-r", "--recording")


def as_options(words: Sequence[str], valued: Collection[str], flags: Collection[str]) -> tuple[list[str], str]:
    """The command line with -p, -c, -r or "--", and the EXE that was named beside a core or a process, "" for none.
    ``valued``: our options with a value, ``flags``: those without. Raises UsageError if no meaning fits."""
    places = _positions(words, valued)
    if not places or table.is_command(words[places[0]]):
        return list(words), ""
    first, rest = places[0], places[1:]
    word = words[first]
    if word == "attach" and rest:
        return [*words[:first], "-p", *words[first + 1 :]], ""
    has_source = any(each.partition("=")[0] in _SOURCES for each in words)
    option = "" if has_source else source_option(word)
    if option:
        return [*words[:first], option, *words[first:]], ""
    if not is_startable(word):
        return list(words), ""
    others = [*words[:first], *words[first + 1 :]]
    if has_source:
        return others, word
    option = source_option(words[rest[0]]) if rest else ""
    if option:
        return [*words[:first], *words[first + 1 : rest[0]], option, *words[rest[0] :]], word
    ours = next((each for each in others if each.partition("=")[0] in {*valued, *flags} or source_option(each)), "")
    if first or ours:
        line = " ".join(words)
        raise UsageError(
            f"not clear whether to start {word}: {ours or words[0]} is an option, a core or a process of ours",
            help=f"-- {line}   or   -p PID   or   {word} -c CORE",
        )
    return ["--", *_started(words)], ""


def _positions(words: Sequence[str], valued: Collection[str]) -> list[int]:
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
    """The option for what the word names: -p for a number, -c for a core, -r for a recording; "" for anything else. A
    name such as core.1234 counts if the file cannot be read: the error is to be about that file."""
    if word.isdecimal():
        return "-p"
    try:
        with open(word, "rb", opener=at_once) as file:
            head = file.read(_TYPE.stop)
    except OSError:
        return ("-r" if word.endswith(".rec") else "-c") if _names_evidence(word) else ""
    if head.startswith(_RECORDING):
        return "-r"
    is_core = head.startswith(_PACKED) or (head.startswith(_ELF) and head[_TYPE] == _ET_CORE)
    return "-c" if is_core or (_names_evidence(word) and not os.access(word, os.X_OK)) else ""


def _names_evidence(word: str) -> bool:
    """The name is one that cores and recordings have: core, core.7392, train.core.zst, hung.rec."""
    parts = word.rpartition("/")[2].replace("-", ".").split(".")
    return parts[0] == "core" or "core" in parts[1:] or parts[-1] == "rec"


def is_startable(word: str) -> bool:
    """The shell would start something by that word, or it is a Python script."""
    folders = [""] if "/" in word else [f"{each}/" for each in os.environ.get("PATH", "").split(os.pathsep) if each]
    is_program = any(os.access(folder + word, os.X_OK) and os.path.isfile(folder + word) for folder in folders)  # noqa: PTH113
    return is_program or _is_script(word)


def _is_script(word: str) -> bool:
    return word.endswith(".py") and os.path.isfile(word)  # noqa: PTH113


def _started(words: Sequence[str]) -> list[str]:
    """The words that start it: a script by Python."""
    if not _is_script(words[0]) or (os.access(words[0], os.X_OK) and "/" in words[0]):
        return list(words)
    return ["python" if find_program("python") else "python3", *words]
