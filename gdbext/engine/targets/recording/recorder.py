"""A target that writes down everything that is read of it, as the bytes of a file in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from gdbext import __version__
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import AT_RANDOM
from gdbext.engine.formats.symbol_cache import Numbers, SymbolCache
from gdbext.engine.targets.base_target import (
    MemoryMapping,
    RecordedRun,
    Target,
    TargetMemory,
    TargetMoment,
    TargetOrigin,
    TargetThread,
)
from gdbext.engine.targets.host_files import FoundFile, HostFiles
from gdbext.engine.targets.recording import container
from gdbext.engine.targets.recording.recording import (
    FILE_BITS,
    MEMORY_BITS,
    BlockLog,
    RecordedFile,
    RecordedModule,
    RecordedNumbers,
    RecordedThread,
    Recording,
    SparseBytes,
)
from gdbext.engine.targets.system import linux
from gdbext.engine.targets.system.linux import PAGE_SIZE
from gdbext.errors import GdbextError, MemoryFault

if TYPE_CHECKING:
    from gdbext.engine.formats.elf_header import Data
    from gdbext.engine.formats.symbol_cache import Arrays, Builder
    from gdbext.engine.formats.symbol_table import SymbolTable
    from gdbext.engine.targets.host_files import AnyFact, Fact
    from gdbext.engine.targets.recording.recording import Search

MAX_MEMORY = 192 << 20
"""Bytes of memory that are kept; what is read after that is not in the recording."""


class LoggedNumbers:
    """An array of a symbol index that logs which items are read."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._read: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, position: int) -> int:
        value = self._read[position] = self._numbers[position]
        return value

    def recorded(self) -> RecordedNumbers:
        """The items that were read, in the smallest width that all of them fit in."""
        width = 4 if max(self._read.values(), default=0) < 1 << 32 else 8
        pieces = ((position * width, value.to_bytes(width, "little")) for position, value in self._read.items())
        return RecordedNumbers(len(self._numbers), width, SparseBytes.merged(pieces))


class LoggedFile:
    """A mapped file (see engine/formats/elf_header.py) that logs its slices and searches."""

    def __init__(self, path: str, data: Data) -> None:
        self._path = path
        self._data = data
        self._log = BlockLog(FILE_BITS)
        self._offsets: dict[tuple[bytes, int, int], int] = {}
        """(needle, start, end) of a search in the file → the offset at which it was found, or -1."""
        self.found: dict[Search, int | None] = {}
        """Searches in the image with their results: virtual addresses, None for none."""
        self._arrays: dict[str, tuple[LoggedNumbers, LoggedNumbers]] = {}
        """Kind of an array of the symbol index → its addresses and entries."""
        self._is_logging = True

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, where: slice) -> bytes:
        """As bytes; a slice that is read is logged."""
        start, end, _ = where.indices(len(self._data))
        if start < end and self._is_logging:
            self._log.note(start, end)
        return self._data[start:end]

    def find(self, needle: bytes, start: int, end: int) -> int:
        """As bytes.find; only the result is logged, not what was searched."""
        offset = self._data.find(needle, start, end)
        if self._is_logging:
            self._offsets[needle, start, end] = offset
        return offset

    @contextmanager
    def unlogged(self) -> Iterator[None]:
        """Log nothing inside: the index of all symbols is made, and only what is then looked up in it matters."""
        self._is_logging = False
        try:
            yield
        finally:
            self._is_logging = True

    def logged(self, kind: str, arrays: Arrays) -> Arrays:
        """The arrays of the file's symbol index, logged from now on."""
        if kind not in self._arrays:
            self._arrays[kind] = (LoggedNumbers(arrays[0]), LoggedNumbers(arrays[1]))
        return self._arrays[kind]

    def recorded(self) -> RecordedFile:
        """What was read of the file so far."""
        arrays = {kind: (first.recorded(), second.recorded()) for kind, (first, second) in self._arrays.items()}
        contents = self._log.contents(self._data)
        return RecordedFile(self._path, len(self._data), contents, dict(self._offsets), dict(self.found), arrays)


class LoggedImage(ElfImage):
    """An ELF file whose reads and searches are logged by ``file``."""

    def __init__(self, file: LoggedFile, path: str, identity: str) -> None:
        super().__init__(file, path, identity)
        self._file = file

    def find(self, needle: bytes, vaddr: int, end: int, step: int = 1) -> int | None:
        """As ElfImage.find; only the result is logged, not what was searched."""
        with self._file.unlogged():
            address = self._file.found[needle, vaddr, end, step] = super().find(needle, vaddr, end, step)
        return address


class LoggedSymbols(SymbolCache):
    """The user's cache of symbol indexes; what is looked up in an index is logged with its file."""

    searches = 0

    def arrays(self, tables: Sequence[SymbolTable], kind: str, key: str, build: Builder) -> Arrays:
        """As SymbolCache.arrays. Tables in memory, or packed ones, are logged where they are read."""
        file = tables[0].data
        if not isinstance(file, LoggedFile):
            return super().arrays(tables, kind, key, build)
        with file.unlogged():
            arrays = super().arrays(tables, kind, key, build)
        return file.logged(kind, arrays)


class LoggedFiles(HostFiles):
    """Passes on what ``files`` returns, and keeps it for the recording."""

    def __init__(self, files: HostFiles) -> None:
        super().__init__(files.foreign)
        self._inner = files
        self.facts: dict[str, Fact] = {}
        self.texts: dict[str, str] = {}
        self._modules: dict[int, FoundFile] = {}  # by the start of the module
        self.files: list[LoggedFile] = []

    @cached_property
    def symbols(self) -> SymbolCache:
        return LoggedSymbols()

    def module_file(self, start: int, search: Callable[[], FoundFile]) -> FoundFile:
        """The file, logged from here on: what the search itself reads is not needed again."""
        result = self._inner.module_file(start, search)
        if result.image:
            file = LoggedFile(result.image.path, result.image.data)
            self.files.append(file)
            result = result._replace(image=LoggedImage(file, result.image.path, result.image.identity))
        self._modules[start] = result
        return result

    def store_text(self, name: str, make: Callable[[], str]) -> None:
        self.texts[name] = make()

    def recorded_modules(self) -> dict[int, RecordedModule]:
        """Start of a module → the result of the search for its file."""
        numbers = {id(file): number for number, file in enumerate(self.files)}
        return {
            start: RecordedModule(result.status, result.problem, numbers.get(id(result.image and result.image.data)))
            for start, result in self._modules.items()
        }

    def fact(self, name: str, unknown: AnyFact, read: Callable[[], AnyFact]) -> AnyFact:
        """The first result, also for later commands on the same process: a replay has only one."""
        if name not in self.facts:
            self.facts[name] = self._inner.fact(name, unknown, read)
        return cast("AnyFact", self.facts[name])


class RecorderOrigin(TargetOrigin):
    """Passes on what the target's origin returns; what is read of its files is recorded."""

    files: LoggedFiles

    def __init__(self, origin: TargetOrigin) -> None:
        super().__init__(origin.foreign)
        self.kind, self.readings = origin.kind, origin.readings
        self.files = LoggedFiles(origin.files)
        self._origin = origin

    def local_path(self, path: str) -> str:
        return self._origin.local_path(path)

    def environ(self) -> Mapping[str, str]:
        return self._origin.environ()

    def files_known_at(self) -> float | None:
        return self._origin.files_known_at()


class RecordingTarget(Target, TargetMemory, TargetMoment):
    """Passes on what ``target`` returns, and keeps it for ``recording``. Memory is read through a page cache
    (NotedMemory), which notes the wanted part of each page: only that is kept. Of a page that was fetched again, after
    the process ran, the last contents are kept."""

    reads_ahead = False
    records = True

    def __init__(self, target: Target) -> None:
        self.target = target
        self._source = target.memory
        self.debugger = target.debugger
        self.pid = target.pid
        self.architecture = target.architecture
        self.holder = target.moment.holder
        self.is_complete = True  # false once more was read than is kept
        self._pieces: dict[tuple[int, int], bytes] = {}  # (address, size) → bytes that were read whole
        self._pages: dict[int, bytes] = {}  # page number → page, of which the ``_wanted`` part is kept
        self._wanted = BlockLog(MEMORY_BITS)
        self._size = 0
        self._unreadable: set[int] = set()  # addresses of pages

    @cached_property
    def origin(self) -> RecorderOrigin:
        return RecorderOrigin(self.target.origin)

    @property
    def stops(self) -> int | None:
        return self.target.moment.stops

    def need_registers(self, tid: int) -> None:
        self.target.moment.need_registers(tid)

    def read(self, address: int, size: int) -> bytes:
        """As the target; pages that cannot be read are noted, too."""
        try:
            data = self._source.read(address, size)
        except MemoryFault:
            if size == PAGE_SIZE and address % PAGE_SIZE == 0:
                self._unreadable.add(address)
            raise
        if self._has_room(size):
            self._pieces[address, size] = data
        return data

    def copied_page(self, number: int) -> bytes:
        """As the target, but only the parts that ``note`` names are recorded; b"" if it cannot be read."""
        try:
            page = self._source.read(number * PAGE_SIZE, PAGE_SIZE)
        except MemoryFault:
            return b""
        if self._has_room(PAGE_SIZE):
            self._pages[number] = page
        return page

    def note(self, address: int, size: int) -> None:
        if size > 0:
            self._wanted.note(address, address + size)

    def _has_room(self, size: int) -> bool:
        """Count ``size`` more bytes; False if the recording would have too many."""
        if self._size + size > MAX_MEMORY:
            self.is_complete = False
            return False
        self._size += size
        return True

    def sample(self, address: int, size: int) -> bytes:
        return self._source.sample(address, size)

    def threads(self) -> Sequence[TargetThread]:
        return self._source.threads()

    def selected_thread(self) -> TargetThread | None:
        return self._source.selected_thread()

    def maps(self) -> Sequence[MemoryMapping]:
        return self._source.maps()

    def auxv(self) -> Mapping[int, int]:
        return self._source.auxv()

    def close(self) -> None:
        self.target.close()

    def recording(self, command: str) -> Recording:
        """What was read so far, all registers, and the code and stack that they point to. Call it while the target is
        stopped. ``command`` is the command line, for the record. Raises TargetError."""
        selected = self.selected_thread()
        threads = tuple(map(_recorded, self.threads()))
        for thread in threads:  # a later version may want a bit more of what the registers point to
            for name in (self.architecture.program_counter, self.architecture.stack_pointer):
                address = thread.registers.get(name, 0)
                page = address - address % PAGE_SIZE
                start, end = max(page, address - 128), min(page + PAGE_SIZE, address + 896)
                with suppress(MemoryFault):
                    self.read(start, end - start)
        files, secrets = self.origin.files, self._secrets()
        return Recording(
            kind=self.origin.kind,
            debugger=self.debugger,
            pid=self.pid,
            architecture=self.architecture.name,
            run=RecordedRun(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), __version__, command),
            selected=selected.tid if selected else None,
            threads=threads,
            maps=tuple(self.maps()),
            auxv=dict(self.auxv()),
            environ=linux.shown_variables(self.origin.environ()),
            facts={name: _public(name, fact, secrets) for name, fact in files.facts.items()},
            kept={name: str(_public("", text, secrets)) for name, text in files.texts.items()},
            modules=files.recorded_modules(),
            files=tuple(file.recorded() for file in files.files),
            memory=self._recorded_memory(secrets),
            unreadable=frozenset(self._unreadable),
        )

    def _recorded_memory(self, secrets: Sequence[bytes]) -> SparseBytes:
        """The memory that was read, with the strings of the arguments and of the environment blanked, and the secrets
        among them wherever else they are (Python has copies)."""
        low, high = self._strings()
        pages = [(number * PAGE_SIZE, page) for number, page in self._pages.items()]
        pieces = [(address, piece) for (address, _), piece in self._pieces.items()]
        blanked = []
        for address, piece in pages + pieces:
            start, end = max(low - address, 0), min(high - address, len(piece))
            blanked.append((address, piece[:start] + bytes(end - start) + piece[end:] if start < end else piece))
        memory = SparseBytes.merged(blanked)
        public = SparseBytes(memory.starts, [linux.blank_secrets(piece, secrets) for piece in memory.pieces])
        return public.cut_to([*self._wanted.ranges(), *((address, address + len(piece)) for address, piece in pieces)])

    def _secrets(self) -> list[bytes]:
        """The secrets in the process's own arguments (8 MB of them at most) and environment."""
        start, end = self._strings()
        try:
            words = self._source.read(start, min(end - start, 8 << 20)).split(b"\0")
        except MemoryFault:
            words = []
        words += [f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in self.origin.environ().items()]
        return linux.secrets_among(words)

    def _strings(self) -> tuple[int, int]:
        """(start, end) of the arguments and environment: at the end of the main thread's stack, after the 16 bytes of
        AT_RANDOM (create_elf_tables and setup_arg_pages, Linux's fs/binfmt_elf.c and fs/exec.c)."""
        random = self.auxv().get(AT_RANDOM, 0)
        stack = next((mapping for mapping in self.maps() if mapping.start <= random < mapping.end), None)
        return (random + 16, stack.end) if stack else (0, 0)


def _public(name: str, fact: Fact, secrets: Sequence[bytes]) -> Fact:
    """A fact of the system by its name (see HostFiles.fact), without the arguments of other processes and without
    secrets."""
    if isinstance(fact, str):
        text = linux.hide_arguments(fact) if name.endswith("/cmdline") else fact
        return linux.blank_secrets(text.encode("utf-8", "surrogateescape"), secrets).decode("utf-8", "surrogateescape")
    if isinstance(fact, list):
        return [str(_public("", item, secrets)) for item in fact]
    return fact


def _recorded(thread: TargetThread) -> RecordedThread:
    """The record of a thread; if its registers cannot be read, the reason is in their place."""
    state, side = thread.kernel_state, thread.kernel_side
    recorded = RecordedThread(thread.tid, thread.number, thread.name, None, state, {}, kernel_side=side)
    try:
        registers = dict(thread.registers())
        floats = {} if thread.lacks_registers else dict(thread.float_registers())
    except GdbextError as error:
        return recorded._replace(problem=error.what, help=error.help)
    signal, stop_signal = thread.signal, thread.stop_signal
    return recorded._replace(signal=signal, registers=registers, float_registers=floats, stop_signal=stop_signal)


def encode(recording: Recording, preset: int = container.FAST) -> bytes:
    """The bytes of the file. Raises GdbextError if it would be too large."""
    return container.pack(*document_and_blocks(recording), preset)


def document_and_blocks(recording: Recording) -> tuple[dict[str, Any], list[SparseBytes]]:
    """The JSON document of a recording, which refers to blocks by their index, and these blocks."""
    blocks: list[SparseBytes] = []

    def number_of(block: SparseBytes) -> int:
        blocks.append(block)
        return len(blocks) - 1

    def numbers(recorded: RecordedNumbers) -> dict[str, int]:
        return {"count": recorded.length, "width": recorded.width, "contents": number_of(recorded.contents)}

    target = ("kind", "debugger", "pid", "architecture", "selected")
    document = {
        "target": {name: getattr(recording, name) for name in target},
        "made": recording.run._asdict(),
        "threads": [_thread_document(thread) for thread in recording.threads],
        "maps": [list(mapping) for mapping in recording.maps],
        "auxv": {str(key): value for key, value in recording.auxv.items()},
        "environ": dict(recording.environ),
        "facts": dict(recording.facts),
        "kept": dict(recording.kept),
        "modules": [{"start": start, **module._asdict()} for start, module in sorted(recording.modules.items())],
        "files": [
            {
                "path": file.path,
                "size": file.size,
                "contents": number_of(file.contents),
                "offsets": [[needle.hex(), *where, at] for (needle, *where), at in file.offsets.items()],
                "found": [[needle.hex(), *where, at] for (needle, *where), at in file.found.items()],
                "arrays": {kind: list(map(numbers, arrays)) for kind, arrays in sorted(file.arrays.items())},
            }
            for file in recording.files
        ],
        "memory": number_of(recording.memory),
        "unreadable": sorted(recording.unreadable),
    }
    return document, blocks


def _thread_document(thread: RecordedThread) -> dict[str, Any]:
    """The JSON object of a thread; docs/recording.md lists its members."""
    document = {
        **thread._asdict(),
        "signal": thread.signal._asdict() if thread.signal else None,
        "state": thread.kernel_state,
        "registers": dict(thread.registers),
        "float_registers": dict(thread.float_registers),
    }
    del document["kernel_state"]
    if side := thread.kernel_side:
        document["kernel_side"] = side._asdict()
        seconds = document["kernel_side"].pop("seconds")
        document["kernel_side"]["slept_ms"] = None if seconds is None else round(seconds * 1e3)
    return document
