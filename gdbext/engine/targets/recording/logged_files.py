"""Reads this machine's files for a target that is recorded, and notes what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, cast

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_cache import Numbers, SymbolCache
from gdbext.engine.targets.host_files import FoundFile, HostFiles
from gdbext.engine.targets.recording import recording

if TYPE_CHECKING:
    from gdbext.engine.formats.elf_header import Data
    from gdbext.engine.formats.symbol_cache import Arrays, Builder
    from gdbext.engine.formats.symbol_table import SymbolTable
    from gdbext.engine.targets.host_files import AnyFact, Fact


class LoggedNumbers:
    """An array of a symbol index whose items are noted as they are read."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._read: set[int] = set()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, position: int) -> int:
        value = self._numbers[position]
        self._read.add(position)
        return value

    def recorded(self) -> recording.RecordedNumbers:
        """The items that were read."""
        items = {position: self._numbers[position] for position in sorted(self._read)}
        width = 4 if max(items.values(), default=0) < 1 << 32 else 8
        pieces = ((position * width, value.to_bytes(width, "little")) for position, value in items.items())
        return recording.RecordedNumbers(len(self._numbers), width, recording.SparseBytes.merged(pieces))


class LoggedFile:
    """A mapped file (see engine/formats/elf_header.py) whose slices and searches are noted."""

    def __init__(self, path: str, data: Data) -> None:
        self._path = path
        self._data = data
        self._log = recording.BlockLog(recording.FILE_BITS)
        self._offsets: dict[tuple[bytes, int, int], int] = {}
        self.found: dict[recording.Search, int | None] = {}
        """Searches in the image with their results."""
        self._arrays: dict[str, tuple[LoggedNumbers, LoggedNumbers]] = {}
        self._silent = False

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, where: slice) -> bytes:
        start, end, _ = where.indices(len(self._data))
        if start < end and not self._silent:
            self._log.note(start, end)
        return self._data[start:end]

    def find(self, needle: bytes, start: int, end: int) -> int:
        """Find as bytes.find does; only the result is noted, not what was searched."""
        found = self._data.find(needle, start, end)
        if not self._silent:
            self._offsets[needle, start, end] = found
        return found

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """Note nothing: the index of all symbols is made, and only what is then looked up in it matters."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def logged(self, kind: str, arrays: Arrays) -> Arrays:
        """The arrays of the file's symbol index, noted from now on."""
        if kind not in self._arrays:
            self._arrays[kind] = (LoggedNumbers(arrays[0]), LoggedNumbers(arrays[1]))
        return self._arrays[kind]

    def recorded(self) -> recording.RecordedFile:
        """The bytes that were read so far."""
        arrays = {kind: (first.recorded(), second.recorded()) for kind, (first, second) in self._arrays.items()}
        contents = self._log.contents(self._data)
        return recording.RecordedFile(
            self._path, len(self._data), contents, dict(self._offsets), dict(self.found), arrays
        )


class LoggedImage(ElfImage):
    """The image of such a file."""

    def __init__(self, file: LoggedFile, path: str, identity: str) -> None:
        super().__init__(file, path, identity)
        self._file = file

    def find(self, needle: bytes, vaddr: int, end: int, step: int = 1) -> int | None:
        """Find as in any image; only the result is noted, not the steps to it."""
        with self._file.unnoted():
            found = self._file.found[needle, vaddr, end, step] = super().find(needle, vaddr, end, step)
        return found


class LoggedSymbols(SymbolCache):
    """The user's cache of symbol indexes; what is looked up in an index is noted with its file."""

    searches = 0

    def arrays(self, tables: Sequence[SymbolTable], kind: str, key: str, build: Builder) -> Arrays:
        """The arrays as without a recording. What memory or a packed table holds is noted where that was read."""
        file = tables[0].data
        if not isinstance(file, LoggedFile):
            return super().arrays(tables, kind, key, build)
        with file.unnoted():
            arrays = super().arrays(tables, kind, key, build)
        return file.logged(kind, arrays)


class LoggedFiles(HostFiles):
    """``files`` with everything noted that is read through them."""

    def __init__(self, files: HostFiles) -> None:
        super().__init__(files.foreign)
        self._inner = files
        self.facts: dict[str, Fact] = {}
        self.texts: dict[str, str] = {}
        self._modules: dict[int, FoundFile] = {}
        self._files: list[LoggedFile] = []

    @cached_property
    def symbols(self) -> SymbolCache:
        """Return the symbol index of the user's cache, and record it."""
        return LoggedSymbols()

    def module_file(self, start: int, search: Callable[[], FoundFile]) -> FoundFile:
        """The file that is found, noted from here on: what the search itself reads is not wanted again."""
        found = self._inner.module_file(start, search)
        if found.image:
            file = LoggedFile(found.image.path, found.image.data)
            self._files.append(file)
            found = found._replace(image=LoggedImage(file, found.image.path, found.image.identity))
        self._modules[start] = found
        return found

    def keep(self, name: str, make: Callable[[], str]) -> None:
        """Keep a text in the recording."""
        self.texts[name] = make()

    def recorded_files(self) -> tuple[recording.RecordedFile, ...]:
        """The parts of each file that were read."""
        return tuple(file.recorded() for file in self._files)

    def recorded_modules(self) -> dict[int, recording.RecordedModule]:
        """The results of the search for each module's file."""
        numbers = {id(file): number for number, file in enumerate(self._files)}
        return {
            start: recording.RecordedModule(
                found.status, found.problem, numbers.get(id(found.image and found.image.data))
            )
            for start, found in self._modules.items()
        }

    def fact(self, name: str, unknown: AnyFact, read: Callable[[], AnyFact]) -> AnyFact:
        """The first answer, also for later commands on the same process: a replay has only one."""
        if name not in self.facts:
            self.facts[name] = self._inner.fact(name, unknown, read)
        return cast("AnyFact", self.facts[name])
