"""A recording as a target, with the recorded files in place of this machine's."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.arch import architectures
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.symbol_cache import SymbolCache
from gdbext.engine.targets.base_target import (
    MemoryMapping,
    Target,
    TargetMemory,
    TargetMoment,
    TargetOrigin,
    TargetThread,
)
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.host_files import FoundFile, HostFiles
from gdbext.engine.targets.recording import recording_reader
from gdbext.engine.targets.recording.recording import (
    Missing,
    RecordedFile,
    RecordedNumbers,
    RecordedThread,
    Recording,
)
from gdbext.engine.targets.system.linux import PAGE_SIZE
from gdbext.errors import NOT_RECORDED, MemoryFault, SymbolFileError, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gdbext.engine.formats.symbol_cache import Arrays, Builder
    from gdbext.engine.formats.symbol_table import SymbolTable
    from gdbext.engine.targets.host_files import AnyFact


class ReplayedFile:
    """An ELF file of which pieces are known (see formats.elf.Data). Raises SymbolFileError for all other pieces."""

    def __init__(self, file: RecordedFile, missing: Missing) -> None:
        self.file = file
        self.name = file.path.rpartition("/")[2]
        self._missing = missing

    def __len__(self) -> int:
        return self.file.size

    def __getitem__(self, where: slice) -> bytes:
        """As bytes. Raises SymbolFileError for a slice that was not recorded."""
        start, end, _ = where.indices(self.file.size)
        if start >= end:
            return b""
        data = self.file.contents.read(start, end - start)
        if not data:
            raise self.absent(f"parts of {self.name}", self.file.contents.gap(start, end - start))
        return data

    def find(self, needle: bytes, start: int, end: int) -> int:
        """As bytes.find, for the recorded searches."""
        offset = self.file.offsets.get((needle, start, end))
        if offset is None:
            raise self.absent(f"searches in {self.name}", (needle, start, end))
        return offset

    def arrays(self, kind: str) -> Arrays:
        """The recorded arrays of the symbol index."""
        arrays = self.file.arrays.get(kind)
        if not arrays:
            raise self.absent(f"symbols of {self.name}", kind)
        return ReplayedNumbers(arrays[0], self), ReplayedNumbers(arrays[1], self)

    def absent(self, kind: str, item: object) -> SymbolFileError:
        """Note a missing part for the report; returns the error for it."""
        self._missing.note(kind, item)
        return SymbolFileError(f"{kind} are not in the recording")


class ReplayedImage(ElfImage):
    """An ELF file of a recording, in which only the recorded searches can be repeated."""

    def __init__(self, file: ReplayedFile) -> None:
        super().__init__(file, file.file.path)
        self._file = file

    def find(self, needle: bytes, vaddr: int, end: int, step: int = 1) -> int | None:
        """The recorded result of this search."""
        search = (needle, vaddr, end, step)
        if search not in self._file.file.found:
            self._file.absent(f"searches in {self._file.name}", search)
            return None
        return self._file.file.found[search]


class ReplayedNumbers:
    """An array of a symbol index of which some items are known."""

    def __init__(self, numbers: RecordedNumbers, file: ReplayedFile) -> None:
        self._numbers = numbers
        self._file = file

    def __len__(self) -> int:
        return self._numbers.length

    def __getitem__(self, position: int) -> int:
        """The number at ``position``. Raises SymbolFileError if it was not recorded, IndexError."""
        if not 0 <= position < self._numbers.length:
            raise IndexError(position)
        width = self._numbers.width
        data = self._numbers.contents.read(position * width, width)
        if not data:
            raise self._file.absent(f"symbols of {self._file.name}", position)
        return int.from_bytes(data, "little")


class ReplayedSymbols(SymbolCache):
    """Symbol indexes of a recording; the user's cache is neither read nor filled."""

    searches = 0

    def __init__(self) -> None:  # no folder is needed
        pass

    def arrays(self, tables: Sequence[SymbolTable], kind: str, key: str, build: Builder) -> Arrays:  # noqa: ARG002
        """The recorded arrays of a file's index; an index of tables in memory is built anew (see LoggedSymbols)."""
        file = tables[0].data
        return file.arrays(kind) if isinstance(file, ReplayedFile) else build(tables)


class ReplayedFiles(HostFiles):
    """The recorded results of HostFiles. What the recording lacks is noted in ``missing``."""

    are_here = False

    def __init__(self, recording: Recording, missing: Missing) -> None:
        super().__init__(ForeignFiles.none())
        self._recording = recording
        self._missing = missing

    @cached_property
    def symbols(self) -> SymbolCache:
        return ReplayedSymbols()

    def module_file(self, start: int, search: Callable[[], FoundFile]) -> FoundFile:  # noqa: ARG002
        """The recorded result of the search for the module's file."""
        module = self._recording.modules.get(start)
        if not module:
            self._missing.note("files of modules", start)
            return FoundFile("missing", "its file is not in the recording", None)
        if module.file is None:
            return FoundFile(module.status, module.problem, None)
        file = ReplayedFile(self._recording.files[module.file], self._missing)
        try:
            return FoundFile(module.status, module.problem, ReplayedImage(file))
        except SymbolFileError as error:
            return FoundFile("missing", error.what, None)

    def stored_text(self, name: str) -> str:
        return self._recording.kept.get(name, "")

    def fact(self, name: str, unknown: AnyFact, read: Callable[[], AnyFact]) -> AnyFact:  # noqa: ARG002
        """The recorded fact; ``unknown`` if there is none, or it has another type."""
        if name not in self._recording.facts:
            self._missing.note("facts of the system", name)
            return unknown
        fact = self._recording.facts[name]
        is_same_type = isinstance(fact, type(unknown)) or (unknown is None and isinstance(fact, float))
        return fact if is_same_type else unknown  # type: ignore[return-value]


class ReplayThread(TargetThread):
    """One thread of a recording."""

    def __init__(self, thread: RecordedThread, general: Collection[str], of_sleeper: Collection[str] = ()) -> None:
        """``general``: names of the registers of a stopped thread; ``of_sleeper``: of one that sleeps unstopped."""
        self.tid, self.number, self.name = thread.tid, thread.number, thread.name
        self.signal, self.stop_signal = thread.signal, thread.stop_signal
        self.kernel_state, self.kernel_side = thread.kernel_state, thread.kernel_side
        self._thread = thread
        self._general, self._of_sleeper = {*general}, {*of_sleeper}

    def registers(self) -> Mapping[str, int]:
        """The recorded ones: all of a stopped thread, or those known of one that slept. Raises TargetError if they
        could not be read when it was recorded."""
        registers = self._thread.registers
        is_sleeper = bool(self._of_sleeper) and registers.keys() >= self._of_sleeper
        was_asleep = registers and (self.kernel_side or is_sleeper)
        if not was_asleep and not registers.keys() >= self._general:
            what = self._thread.problem or f"the registers of thread {self.tid} are not in the recording"
            raise TargetError(what, help=self._thread.help)
        return registers

    def float_registers(self) -> Mapping[str, int]:
        """As recorded; older versions did not keep them ({})."""
        return self._thread.float_registers


class ReplayOrigin(TargetOrigin):
    """The facts of a recording; no file of this machine is opened."""

    def __init__(self, recording: Recording, missing: Missing) -> None:
        super().__init__(ForeignFiles.none())
        self.kind = recording.kind
        self.recorded = recording.run
        self.files = ReplayedFiles(recording, missing)
        self._recording = recording
        self._missing = missing

    def environ(self) -> Mapping[str, str]:
        return self._recording.environ

    def missing_from_recording(self) -> str:
        return str(self._missing)


class ReplayTarget(Target, TargetMemory):
    """A recording as a target. What was not read when it was made cannot be read, and is noted in ``missing``. Raises
    ForeignArchitecture."""

    reads_ahead = False
    moment = TargetMoment()

    def __init__(self, recording: Recording) -> None:
        self.architecture = architectures.by_name(recording.architecture)
        self.recording = recording
        self.debugger = recording.debugger
        self.pid = recording.pid
        self.missing = Missing()
        general, sleeper = self.architecture.general_registers, self.architecture.sleeping_registers(0, (0,) * 6, 0, 0)
        self._threads = [ReplayThread(thread, general, sleeper) for thread in recording.threads]

    @classmethod
    def load(cls, path: str) -> ReplayTarget:
        """The target of a recording's file. Raises BadRecording, ForeignArchitecture."""
        return cls(recording_reader.load(path))

    @cached_property
    def origin(self) -> ReplayOrigin:
        return ReplayOrigin(self.recording, self.missing)

    def read(self, address: int, size: int) -> bytes:
        """Memory that was read when the recording was made. Raises MemoryFault: NOT_RECORDED, or without a reason if it
        could not be read then."""
        data = self.recording.memory.read(address, size)
        if data or not size:
            return data
        gap = self.recording.memory.gap(address, size)
        if gap - gap % PAGE_SIZE in self.recording.unreadable:
            raise MemoryFault(gap, size)
        self.missing.note("pages of memory", gap // PAGE_SIZE)
        raise MemoryFault(gap, size, NOT_RECORDED)

    def known_size(self, address: int) -> int:
        """Number of bytes to the end of a piece; 1 if there is none: reading that raises."""
        return self.recording.memory.known_size(address) or 1

    def threads(self) -> Sequence[TargetThread]:
        return self._threads

    def selected_thread(self) -> TargetThread | None:
        return next((thread for thread in self._threads if thread.tid == self.recording.selected), None)

    def maps(self) -> Sequence[MemoryMapping]:
        return self.recording.maps

    def auxv(self) -> Mapping[int, int]:
        return self.recording.auxv
