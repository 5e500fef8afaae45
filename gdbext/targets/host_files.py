"""What is read on the way to a report besides the target itself: ELF files, indexes of symbols, /proc, small files.

Everything goes through one object per target, so that a recording can write it down and stand in for it later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cached_property
from typing import Optional, TypeVar, Union

from gdbext.formats.elf.elf import ElfImage
from gdbext.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.formats.symbols.symbol_cache import SymbolCache

Fact = Union[str, list[str], Optional[float]]
"""What a recording can keep of the system: text, names, a number, or nothing."""
AnyFact = TypeVar("AnyFact", bound=Fact)

_TEXT_LIMIT = 1 << 20
"""Bytes of one small file: what is longer is none."""


class FoundFile(Record):
    """What was found of a module's file: ``status`` and ``problem`` as in process.modules.Module, None for no image."""

    status: str
    problem: str
    image: ElfImage | None


class HostFiles:
    """Reads this machine's files for one target. Only ``module_file`` raises; what cannot be read is empty."""

    are_here = True
    """The files are on this machine: programs may be run on them."""

    @cached_property
    def symbols(self) -> SymbolCache:
        """Where sorted symbols are kept between runs."""
        from gdbext.formats.symbols.symbol_cache import SymbolCache

        return SymbolCache()

    def module_file(self, start: int, search: Callable[[], FoundFile]) -> FoundFile:  # noqa: ARG002
        """The file of the module that is mapped at ``start``, as ``search`` finds it."""
        return search()

    def text(self, path: str, limit: int = _TEXT_LIMIT) -> str:
        """The first ``limit`` bytes of a small file; "" where it cannot be read."""
        return self.fact(f"text {path}", "", lambda: _text(path, limit))

    def names(self, folder: str) -> list[str]:
        """The names in a folder."""
        return self.fact(f"names {folder}", [], lambda: _names(folder))

    def link(self, path: str) -> str:
        """Where a symbolic link leads; "" where it is none."""
        return self.fact(f"link {path}", "", lambda: _link(path))

    def exists(self, path: str, place: str) -> bool | None:
        """Whether there is a file at ``place``, which the examined process calls ``path``; None where that is
        unknown."""
        found = self.fact(f"exists {path}", None, lambda: _exists(place))
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
        """What ``read`` gives; ``unknown`` is for who cannot read (a replay)."""
        return read()


def _text(path: str, limit: int) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - pathlib takes 10 ms to import
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - as above
    except OSError:
        return ""


def _exists(path: str) -> float | None:
    """1 or 0, as a recording keeps numbers."""
    try:
        os.stat(path)  # noqa: PTH116 - as above
    except FileNotFoundError:
        return 0.0
    except OSError:
        return None
    return 1.0


def _clock(number: int) -> float | None:
    try:
        return time.clock_gettime(number)
    except OSError:
        return None
