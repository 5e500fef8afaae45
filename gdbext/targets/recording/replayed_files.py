"""Answers from a recording in place of this machine's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from gdbext.errors import SymbolFileError
from gdbext.formats.elf.elf import ElfImage
from gdbext.formats.symbols.symbol_cache import Arrays, Builder, SymbolCache
from gdbext.formats.symbols.symbol_table import SymbolTable
from gdbext.targets.host_files import AnyFact, FoundFile, HostFiles
from gdbext.targets.recording.missing import Missing
from gdbext.targets.recording.recording import RecordedFile, RecordedNumbers, Recording
from gdbext.targets.recording.sparse_bytes import SparseBytes


class ReplayedFile:
    """An ELF file of which only pieces are known (see formats.elf.Data). Raises SymbolFileError for all others."""

    def __init__(self, file: RecordedFile, missing: Missing) -> None:
        self.file = file
        self._name = file.path.rpartition("/")[2]
        self._missing = missing

    def __len__(self) -> int:
        return self.file.size

    def __getitem__(self, where: slice) -> bytes:
        start, end, _ = where.indices(self.file.size)
        if start >= end:
            return b""
        found = self.file.contents.read(start, end - start)
        if found is None:
            raise self.absent(f"parts of {self._name}", self.file.contents.gap(start, end - start))
        return found

    def find(self, needle: bytes, start: int, end: int) -> int:
        """As bytes.find, for the searches that were made."""
        found = self.file.offsets.get((needle, start, end))
        if found is None:
            raise self.absent(f"searches in {self._name}", (needle, start, end))
        return found

    def arrays(self, kind: str) -> Arrays:
        """The arrays of the symbol index."""
        found = self.file.arrays.get(kind)
        if found is None:
            raise self.absent(f"symbols of {self._name}", kind)
        first, second = found
        return ReplayedNumbers(first, self), ReplayedNumbers(second, self)

    def absent(self, kind: str, place: object) -> SymbolFileError:
        """The error to raise; the report will say what is missing."""
        self._missing.note(kind, place)
        return SymbolFileError(f"{kind} are not in the recording")


class ReplayedImage(ElfImage):
    """The image of such a file."""

    def __init__(self, file: ReplayedFile) -> None:
        super().__init__(file, file.file.path)
        self._file = file

    def find(self, needle: bytes, vaddr: int, end: int, step: int = 1) -> int | None:
        """What was found then."""
        search = (needle, vaddr, end, step)
        if search not in self._file.file.found:
            self._file.absent(f"searches in {self.path.rpartition('/')[2]}", search)
            return None
        return self._file.file.found[search]


class ReplayedNumbers:
    """An array of a symbol index of which only some items are known."""

    def __init__(self, numbers: RecordedNumbers, file: ReplayedFile) -> None:
        self._count = numbers.length
        self._width = numbers.width
        self._contents: SparseBytes = numbers.contents
        self._file = file

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self._count:
            raise IndexError(position)
        found = self._contents.read(position * self._width, self._width)
        if found is None:
            raise self._file.absent(f"symbols of {self._file.file.path.rpartition('/')[2]}", position)
        return int.from_bytes(found, "little")


class ReplayedSymbols(SymbolCache):
    """Symbol indexes of a recording; the user's cache is neither read nor filled."""

    def __init__(self) -> None:
        """There is no folder."""

    def arrays(self, tables: Sequence[SymbolTable], kind: str, key: str | None, build: Builder) -> Arrays:  # noqa: ARG002
        """What was looked up; built where the tables themselves were read (see LoggedSymbols)."""
        file = tables[0].data
        return file.arrays(kind) if isinstance(file, ReplayedFile) else build(tables)


class ReplayedFiles(HostFiles):
    """The files of a recording. ``missing`` is told what is not in it."""

    are_here = False

    def __init__(self, recording: Recording, missing: Missing) -> None:
        self._recording = recording
        self._missing = missing

    @cached_property
    def symbols(self) -> SymbolCache:
        """The indexes of the recording."""
        return ReplayedSymbols()

    def module_file(self, start: int, search: Callable[[], FoundFile]) -> FoundFile:  # noqa: ARG002
        """What the search found."""
        module = self._recording.modules.get(start)
        if module is None:
            self._missing.note("files of modules", start)
            return FoundFile("missing", "its file is not in the recording", None)
        if module.file is None:
            return FoundFile(module.status, module.problem, None)
        file = self._recording.files[module.file]
        try:
            return FoundFile(module.status, module.problem, ReplayedImage(ReplayedFile(file, self._missing)))
        except SymbolFileError as error:
            return FoundFile("missing", error.what, None)

    def kept(self, name: str) -> str:
        """The text that was kept."""
        return self._recording.kept.get(name, "")

    def fact(self, name: str, unknown: AnyFact, read: Callable[[], AnyFact]) -> AnyFact:  # noqa: ARG002
        """What was read then."""
        if name not in self._recording.facts:
            self._missing.note("facts of the system", name)
            return unknown
        found = self._recording.facts[name]
        same = isinstance(found, type(unknown)) or (unknown is None and isinstance(found, float))
        return found if same else unknown  # type: ignore[return-value]
