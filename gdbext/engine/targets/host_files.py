"""Reads what a report needs besides the target itself: ELF files, indexes of symbols, /proc, small files.

Everything goes through one object per target, so that a recording can write it down and stand in for it later. Files of
the kernel (/proc) are read here, those that the target names through the door for them (foreign_files.py).
"""

from __future__ import annotations

import os
import time
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.system import proc_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Optional, TypeVar, Union

    from gdbext.engine.formats.elf import ElfImage

    Fact = Union[str, list[str], Optional[float]]
    """A fact of the system that a recording can keep: text, names, a number, or nothing."""
    AnyFact = TypeVar("AnyFact", bound=Fact)


_TEXT_LIMIT = 1 << 20
"""Bytes of one small file: what is longer is none."""


class FoundFile(NamedTuple):
    """The result of the search for a module's file: ``status`` and ``problem`` as in process.modules.Module, None for
    no image."""

    status: str
    problem: str
    image: ElfImage | None


class HostFiles:
    """Reads this machine's files for one target. Only ``module_file`` raises; what cannot be read is empty."""

    are_here = True
    """The files are on this machine: programs may be run on them."""

    def __init__(self, foreign: ForeignFiles | None = None) -> None:
        """``foreign`` opens the target's files; without it, those of this machine."""
        self.foreign = foreign or ForeignFiles()

    @cached_property
    def symbols(self) -> SymbolCache:
        """The cache in which sorted symbols are kept between runs."""
        return SymbolCache()

    def module_file(self, start: int, search: Callable[[], FoundFile]) -> FoundFile:  # noqa: ARG002
        """The file of the module that is mapped at ``start``, as ``search`` finds it."""
        return search()

    def text(self, path: str, limit: int = _TEXT_LIMIT) -> str:
        """The first ``limit`` bytes of a file of /proc; "" where it cannot be read."""
        return self.fact(f"text {path}", "", lambda: _text(path, limit))

    def names(self, folder: str) -> list[str]:
        """The names in a folder of /proc."""
        return self.fact(f"names {folder}", [], lambda: _names(folder))

    def link(self, path: str) -> str:
        """The target of a link of /proc; "" where it is none."""
        return self.fact(f"link {path}", "", lambda: link_of(path))

    def foreign_text(self, path: str, limit: int) -> str:
        """A small file of the target; "" where it cannot be read, or is longer than ``limit`` bytes."""
        return self.fact(f"text {path}", "", lambda: _foreign_text(self.foreign, path, limit))

    def foreign_names(self, folder: str) -> list[str]:
        """The names in a folder of the target."""
        return self.fact(f"names {folder}", [], lambda: _foreign_names(self.foreign, folder))

    def exists(self, path: str, place: Callable[[], str]) -> bool | None:
        """True if the target has a file at ``place``, which it calls ``path``; None where that is unknown."""
        found = self.fact(f"exists {path}", None, lambda: _exists(self.foreign, place()))
        return None if found is None else bool(found)

    def clock(self, number: int) -> float | None:
        """The time of a clock of this machine (CLOCK_*), in seconds."""
        return self.fact(f"clock {number}", None, lambda: _clock(number))

    def host(self) -> str:
        """The name of this machine, "" where that is not known."""
        return self.fact("host", "", lambda: os.uname().nodename)

    def keep(self, name: str, make: Callable[[], str]) -> None:
        """A recording keeps that text, which was made on this machine and will be wanted at a replay."""

    def kept(self, name: str) -> str:  # noqa: ARG002
        """The text that a recording kept; "" without one."""
        return ""

    def fact(self, name: str, unknown: AnyFact, read: Callable[[], AnyFact]) -> AnyFact:  # noqa: ARG002
        """The result of ``read``; ``unknown`` is for who cannot read (a replay)."""
        return read()


def _text(path: str, limit: int) -> str:
    try:
        return proc_files.head(path, limit).decode(errors="replace")
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - pathlib takes 10 ms to import
    except OSError:
        return []


def link_of(path: str) -> str:
    """The target of a link of /proc; "" where it is none."""
    try:
        return os.readlink(path)  # noqa: PTH115 - as above
    except OSError:
        return ""


def _foreign_text(files: ForeignFiles, path: str, limit: int) -> str:
    try:
        return files.read(path, limit)[0].decode("utf-8", "replace")
    except OSError:
        return ""


def _foreign_names(files: ForeignFiles, folder: str) -> list[str]:
    try:
        return files.names(folder)
    except OSError:
        return []


def _exists(files: ForeignFiles, path: str) -> float | None:
    """1 or 0, as a recording keeps numbers."""
    found = files.exists(path)
    return None if found is None else float(found)


def _clock(number: int) -> float | None:
    try:
        return time.clock_gettime(number)
    except OSError:
        return None
