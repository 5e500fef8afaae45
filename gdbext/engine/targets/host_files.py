"""Reads what a report needs besides the target itself: ELF files, indexes of symbols, /proc, small files.

Everything goes through one object per target, so that a recording can store it and replace it later. Files of the
kernel are read by system/proc_files.py, those that the target names by foreign_files.py.
"""

from __future__ import annotations

import os
import time
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.numbers import number
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.system.proc_files import ONE, file_text, folder_names, link_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Optional, TypeVar, Union

    from gdbext.engine.formats.elf import ElfImage

    Fact = Union[str, list[str], Optional[float]]
    """A fact of the system that a recording can keep: text, names, a number, or nothing."""
    AnyFact = TypeVar("AnyFact", bound=Fact)


class FoundFile(NamedTuple):
    """The result of the search for a module's file: ``status``, ``problem`` and ``image`` of process.modules.Module."""

    status: str
    problem: str
    image: ElfImage | None


class HostFiles:
    """Reads this machine's files for one target. Only ``module_file`` raises; what cannot be read is empty."""

    are_here = True
    """The files are on this machine: programs may be run on them."""

    def __init__(self, foreign: ForeignFiles | None = None) -> None:
        """``foreign`` opens the target's files; None: those of this machine."""
        self.foreign = foreign or ForeignFiles()

    @cached_property
    def symbols(self) -> SymbolCache:
        """The cache in which sorted symbols are kept between runs."""
        return SymbolCache()

    def module_file(self, start: int, search: Callable[[], FoundFile]) -> FoundFile:  # noqa: ARG002
        """The file of the module mapped at ``start``, as ``search`` finds it; a replay does not search."""
        return search()

    def text(self, path: str, limit: int = ONE) -> str:
        """The first ``limit`` bytes of a file of /proc; "" if it cannot be read."""
        return self.fact(f"text {path}", "", lambda: file_text(path, limit))

    def names(self, folder: str) -> list[str]:
        """The names in a folder of /proc; [] if it cannot be read."""
        return self.strings(f"names {folder}", lambda: folder_names(folder))

    def link(self, path: str) -> str:
        """The target of a link of /proc; "" if it is none."""
        return self.fact(f"link {path}", "", lambda: link_target(path))

    def foreign_text(self, path: str, limit: int) -> str:
        """A small file of the target; "" if it cannot be read, or is longer than ``limit`` bytes."""
        return self.fact(f"text {path}", "", lambda: self.foreign.read(path, limit)[0].decode("utf-8", "replace"))

    def foreign_names(self, folder: str) -> list[str]:
        """The names in a folder of the target."""
        return self.strings(f"names {folder}", lambda: self.foreign.names(folder))

    def exists(self, path: str, absolute: Callable[[], str]) -> bool | None:
        """True if the target has a file at the path ``absolute()``, which it calls ``path``; None if unknown."""
        return self.flag(f"exists {path}", lambda: self.foreign.exists(absolute()))

    def clock(self, clock: int) -> float | None:
        """Seconds on this machine's clock of that CLOCK_ number (time module); None if there is none."""
        return self.fact(f"clock {clock}", None, lambda: time.clock_gettime(clock))

    def host(self) -> str:
        """The name of this machine, "" if unknown."""
        return self.fact("host", "", lambda: os.uname().nodename)

    def store_text(self, name: str, make: Callable[[], str]) -> None:
        """Store the text ``make()`` under a name if a recording is being made, for ``stored_text`` of its replay."""

    def stored_text(self, name: str) -> str:  # noqa: ARG002
        """The text that a recording has under ``name``; "" for any other target."""
        return ""

    def fact(self, name: str, unknown: AnyFact, read: Callable[[], AnyFact]) -> AnyFact:  # noqa: ARG002
        """The result of ``read()``, or ``unknown`` if that raises OSError. A recording keeps it under ``name``; a
        replay returns the recorded one."""
        try:
            return read()
        except OSError:
            return unknown

    def strings(self, name: str, read: Callable[[], list[str]]) -> list[str]:
        """A fact that is a list of strings; [] if unknown."""
        return self.fact(name, list[str](), read)

    def flag(self, name: str, read: Callable[[], bool | None]) -> bool | None:
        """A fact that is true or false, recorded as a number; None if unknown."""

        def read_number() -> float | None:
            value = read()
            return None if value is None else float(value)

        recorded = self.fact(name, None, read_number)
        return None if recorded is None else bool(recorded)

    def pids(self, name: str, read: Callable[[], Iterable[int]]) -> list[int]:
        """A fact that is a list of PIDs, each of which counts once; [] if unknown."""
        words = self.strings(name, lambda: [str(pid) for pid in dict.fromkeys(read())])
        return [pid for word in words if (pid := number(word)) is not None]
