"""A target of which everything that is read is written down, as the bytes of a file in the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gdbext import __version__
from gdbext.engine.formats.auxv import AT_RANDOM
from gdbext.engine.targets.base_target import (
    KernelSide,
    MemoryMapping,
    RecordedRun,
    Signal,
    Target,
    TargetMemory,
    TargetMoment,
    TargetOrigin,
    TargetThread,
)
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.recording import container
from gdbext.engine.targets.recording.logged_files import LoggedFiles
from gdbext.engine.targets.recording.recording import (
    MEMORY_BITS,
    BlockLog,
    RecordedFile,
    RecordedNumbers,
    RecordedThread,
    Recording,
    SparseBytes,
)
from gdbext.engine.targets.system import linux
from gdbext.engine.targets.system.linux import PAGE_SIZE
from gdbext.errors import GdbextError, MemoryFault

if TYPE_CHECKING:
    from gdbext.engine.targets.host_files import Fact

MAX_MEMORY = 192 << 20
"""Bytes of memory that are kept; what is read after that is not in the recording."""
_RANDOM_BYTES = 16
_BEFORE, _BEHIND = 128, 896
"""Bytes that are kept before and behind what a program counter or a stack pointer points to."""
_MOST_STRINGS = 8 << 20
"""Bytes of arguments and variables that are looked through."""


class RecorderOrigin(TargetOrigin):
    """The origin of the target; what is read of its files is recorded."""

    files: LoggedFiles

    def __init__(self, origin: TargetOrigin) -> None:
        super().__init__()
        self.kind, self.readings = origin.kind, origin.readings
        self.files = LoggedFiles(origin.files)
        self._origin = origin

    @cached_property
    def foreign(self) -> ForeignFiles:
        return self._origin.foreign

    def local_path(self, path: str) -> str:
        return self._origin.local_path(path)

    def environ(self) -> Mapping[str, str]:
        return self._origin.environ()

    def files_known_at(self) -> float | None:
        return self._origin.files_known_at()


class RecordingTarget(Target, TargetMemory, TargetMoment):
    """``target`` itself to everybody else; ``recording`` says what was read of it.

    Memory is read through a cache of pages (NotedMemory), which says what of a page was wanted: only that is kept, and
    of a page that was fetched again, after the process ran on, what it was at last.
    """

    reads_ahead = False
    records = True

    def __init__(self, target: Target) -> None:
        self.target = target
        self._recorded = target.memory
        self.debugger = target.debugger
        self.pid = target.pid
        self.architecture = target.architecture
        self.holder = target.moment.holder
        self.is_complete = True
        """False once more was read than is kept."""
        self._pieces: dict[tuple[int, int], bytes] = {}
        self._pages: dict[int, bytes] = {}
        self._wanted = BlockLog(MEMORY_BITS)
        self._size = 0
        self._unreadable: set[int] = set()

    @property
    def memory(self) -> TargetMemory:
        return self

    @property
    def moment(self) -> TargetMoment:
        return self

    @cached_property
    def origin(self) -> RecorderOrigin:
        return RecorderOrigin(self.target.origin)

    def read(self, address: int, size: int) -> bytes:
        """Read as the target does; pages that cannot be read are noted, too."""
        try:
            found = self._recorded.read(address, size)
        except MemoryFault:
            if size == PAGE_SIZE and address % PAGE_SIZE == 0:
                self._unreadable.add(address)
            raise
        if self._has_room(size):
            self._pieces[address, size] = found
        return found

    @property
    def stops(self) -> int | None:
        """Number of stops of the target."""
        return self.target.moment.stops

    def need_registers(self, tid: int) -> None:
        """Note in the target that a proof needs registers of the thread."""
        self.target.moment.need_registers(tid)

    def copied_page(self, number: int) -> bytes:
        """A page of which only that is kept which ``note`` is told of; b"" where it cannot be read."""
        try:
            found = self._recorded.read(number * PAGE_SIZE, PAGE_SIZE)
        except MemoryFault:
            return b""
        if self._has_room(PAGE_SIZE):
            self._pages[number] = found
        return found

    def note(self, address: int, size: int) -> None:
        """Keep these bytes of the pages."""
        if size > 0:
            self._wanted.note(address, address + size)

    def _has_room(self, size: int) -> bool:
        if self._size + size > MAX_MEMORY:
            self.is_complete = False
            return False
        self._size += size
        return True

    def sample(self, address: int, size: int) -> bytes:
        """Read as the target does; this is not noted."""
        return self._recorded.sample(address, size)

    def threads(self) -> Sequence[TargetThread]:
        return self._recorded.threads()

    def selected_thread(self) -> TargetThread | None:
        return self._recorded.selected_thread()

    def maps(self) -> Sequence[MemoryMapping]:
        return self._recorded.maps()

    def auxv(self) -> Mapping[int, int]:
        return self._recorded.auxv()

    def close(self) -> None:
        """Close the target: it is let go."""
        self.target.close()

    def recording(self, command: str) -> Recording:
        """Record what was read so far, all registers, the code and the stack that they point to; while the target is
        stopped.

        Raises TargetError.
        """
        selected = self.selected_thread()
        threads = tuple(_recorded(thread) for thread in self.threads())
        self._read_at(threads)
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
            environ=linux.shown(self.origin.environ()),
            facts=_public(self.origin.files.facts, self._secrets),
            kept={name: str(_public_fact("", text, self._secrets)) for name, text in self.origin.files.texts.items()},
            modules=self.origin.files.recorded_modules(),
            files=self.origin.files.recorded_files(),
            memory=self._memory(),
            unreadable=frozenset(self._unreadable),
        )

    def _read_at(self, threads: Sequence[RecordedThread]) -> None:
        """Read some of what program counters and stack pointers point to: a later version may want it, too."""
        for thread in threads:
            for name in (self.architecture.program_counter, self.architecture.stack_pointer):
                address = thread.registers.get(name, 0)
                page = address - address % PAGE_SIZE
                start, end = max(page, address - _BEFORE), min(page + PAGE_SIZE, address + _BEHIND)
                try:
                    self.read(start, end - start)
                except MemoryFault:
                    continue

    def _memory(self) -> SparseBytes:
        """The memory that was read, with the strings of the arguments and of the environment blanked; wherever else the
        secrets among them stand (Python has copies), these are, too."""
        start, end = self._strings()
        pages = [(number * PAGE_SIZE, page) for number, page in self._pages.items()]
        pieces = [(address, piece) for (address, _), piece in self._pieces.items()]
        found = [(address, _blanked(address, piece, start, end)) for address, piece in (*pages, *pieces)]
        read = SparseBytes.merged(found)
        public = SparseBytes(read.starts, [linux.blanked(piece, self._secrets) for piece in read.pieces])
        return public.cut_to([*self._wanted.ranges(), *((address, address + len(piece)) for address, piece in pieces)])

    @cached_property
    def _secrets(self) -> list[bytes]:
        """Those of the process's own arguments and environment."""
        start, end = self._strings()
        try:
            words = self._recorded.read(start, min(end - start, _MOST_STRINGS)).split(b"\0")
        except MemoryFault:
            words = []
        words += [f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in self.origin.environ().items()]
        return linux.secrets_among(words)

    def _strings(self) -> tuple[int, int]:
        """The place where the kernel put them: at the end of the main thread's stack, behind the 16 bytes of AT_RANDOM
        (create_elf_tables and setup_arg_pages, Linux's fs/binfmt_elf.c and fs/exec.c)."""
        start = self.auxv().get(AT_RANDOM, 0)
        for mapping in self.maps():
            if mapping.start <= start < mapping.end:
                return start + _RANDOM_BYTES, mapping.end
        return 0, 0


def _blanked(address: int, piece: bytes, start: int, end: int) -> bytes:
    start, end = max(start, address), min(end, address + len(piece))
    if start >= end:
        return piece
    return piece[: start - address] + bytes(end - start) + piece[end - address :]


def _public(facts: Mapping[str, Fact], secrets: Sequence[bytes]) -> dict[str, Fact]:
    """The facts that were asked of the system, without the arguments of other processes and without secrets."""
    return {name: _public_fact(name, fact, secrets) for name, fact in facts.items()}


def _public_fact(name: str, fact: Fact, secrets: Sequence[bytes]) -> Fact:
    if isinstance(fact, str):
        text = linux.program_only(fact) if name.endswith("/cmdline") else fact
        return linux.blanked(text.encode("utf-8", "surrogateescape"), secrets).decode("utf-8", "surrogateescape")
    if isinstance(fact, list):
        return [str(_public_fact("", each, secrets)) for each in fact]
    return fact


def _recorded(thread: TargetThread) -> RecordedThread:
    try:
        return RecordedThread(
            tid=thread.tid,
            number=thread.number,
            name=thread.name,
            signal=thread.signal,
            kernel_state=thread.kernel_state,
            registers=dict(thread.registers()),
            float_registers={} if thread.lacks_registers else dict(thread.float_registers()),
            kernel_side=thread.kernel_side,
            stop_signal=thread.stop_signal,
        )
    except GdbextError as error:
        return RecordedThread(
            thread.tid,
            thread.number,
            thread.name,
            None,
            thread.kernel_state,
            {},
            error.what,
            error.help,
            kernel_side=thread.kernel_side,
        )


def encode(recording: Recording, preset: int = container.FAST) -> bytes:
    """The bytes of the file. Raises GdbextError when it would be too large."""
    return container.pack(*parts(recording), preset)


def parts(recording: Recording) -> tuple[dict[str, Any], list[SparseBytes]]:
    """The document and the blocks of a recording."""
    blocks = _Blocks()
    document = {
        "target": {
            "kind": recording.kind,
            "debugger": recording.debugger,
            "pid": recording.pid,
            "architecture": recording.architecture,
            "selected": recording.selected,
        },
        "made": {"command": recording.run.command, "taken": recording.run.taken, "gdbext": recording.run.gdbext},
        "threads": [_thread(thread) for thread in recording.threads],
        "maps": [_mapping(mapping) for mapping in recording.maps],
        "auxv": {str(key): value for key, value in recording.auxv.items()},
        "environ": dict(recording.environ),
        "facts": dict(recording.facts),
        "kept": dict(recording.kept),
        "modules": [
            {"start": start, "status": module.status, "problem": module.problem, "file": module.file}
            for start, module in sorted(recording.modules.items())
        ],
        "files": [_file(file, blocks) for file in recording.files],
        "memory": blocks.add(recording.memory),
        "unreadable": sorted(recording.unreadable),
    }
    return document, blocks.all


class _Blocks:
    def __init__(self) -> None:
        self.all: list[SparseBytes] = []

    def add(self, block: SparseBytes) -> int:
        """Add it, and give its number."""
        self.all.append(block)
        return len(self.all) - 1


def _thread(thread: RecordedThread) -> dict[str, Any]:
    return {
        "tid": thread.tid,
        "number": thread.number,
        "name": thread.name,
        "signal": _signal(thread.signal),
        "state": thread.kernel_state,
        "registers": dict(thread.registers),
        "problem": thread.problem,
        "help": thread.help,
        "float_registers": dict(thread.float_registers),
        **_kernel_side(thread.kernel_side),
        **({"stop_signal": thread.stop_signal} if thread.stop_signal else {}),
    }


def _kernel_side(side: KernelSide | None) -> dict[str, Any]:
    """Only where there is something to say."""
    if not side:
        return {}
    milliseconds = None if side.seconds is None else round(side.seconds * 1e3)
    names = {"state": side.state, "channel": side.channel, "stack": list(side.stack)}
    return {"kernel_side": {**names, "call": side.call, "arguments": list(side.arguments), "slept_ms": milliseconds}}


def _signal(signal: Signal | None) -> dict[str, Any] | None:
    if not signal:
        return None
    return {"number": signal.number, "name": signal.name, "code": signal.code, "address": signal.address}


def _mapping(mapping: MemoryMapping) -> list[Any]:
    return [
        mapping.start,
        mapping.end,
        mapping.offset,
        mapping.path,
        mapping.permissions,
        mapping.deleted,
        mapping.device,
        mapping.inode,
    ]


def _file(file: RecordedFile, blocks: _Blocks) -> dict[str, Any]:
    return {
        "path": file.path,
        "size": file.size,
        "contents": blocks.add(file.contents),
        "offsets": [[needle.hex(), *where, at] for (needle, *where), at in file.offsets.items()],
        "found": [[needle.hex(), *where, at] for (needle, *where), at in file.found.items()],
        "arrays": {
            kind: [_numbers(first, blocks), _numbers(second, blocks)]
            for kind, (first, second) in sorted(file.arrays.items())
        },
    }


def _numbers(numbers: RecordedNumbers, blocks: _Blocks) -> dict[str, int]:
    return {"count": numbers.length, "width": numbers.width, "contents": blocks.add(numbers.contents)}
