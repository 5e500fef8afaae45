"""A core dump, written by the kernel or by gcore, read without any debugger."""

from __future__ import annotations

import bisect
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from gdbext.engine.arch import Architecture, architectures
from gdbext.engine.formats import elf_core
from gdbext.engine.formats.elf_header import (
    AT_ENTRY,
    AT_RANDOM,
    AT_SYSINFO_EHDR,
    PF_W,
    PF_X,
    Identity,
    parse_auxv,
    permission_text,
)
from gdbext.engine.targets.base_target import (
    MemoryMapping,
    Signal,
    Target,
    TargetMemory,
    TargetMoment,
    TargetOrigin,
    TargetThread,
)
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.mapped_files import MappedFiles
from gdbext.engine.targets.system import linux
from gdbext.errors import MemoryFault

PIPE = "pipe:"
"""The beginning of the name of a core that the kernel is writing: pipe:PID:MEMORY:CORE, with two descriptors."""
_PYTHON_FILES = (
    (re.compile(r"(/.*)/bin/python3[^/]*$"), r"\1/lib/python3"),
    (re.compile(r"(/.*)/lib(?:64)?/(?:[^/]+/)?libpython3[^/]*$"), r"\1/lib/python3"),
    (re.compile(r"(/.*/lib(?:64)?/python3(?:\.\d+t?)?/).*\.so$"), r"\1"),
)
"""Files that an interpreter loads from its prefix, and the folders of the sources that belong to it."""


class CoreFileThread(TargetThread):
    """A thread as its NT_PRSTATUS note describes it. Cores do not have the names of threads."""

    def __init__(self, architecture: Architecture, note: elf_core.CoreThread, signal: Signal | None) -> None:
        self.tid = note.tid
        self.number = None
        self.name = None
        self.signal = signal
        self._architecture = architecture
        self._note = note

    def registers(self) -> Mapping[str, int]:
        return self._architecture.unpack_registers(elf_core.NT_PRSTATUS, self._note.raw_registers)

    def float_registers(self) -> Mapping[str, int]:
        return self._architecture.unpack_floats(self._note.raw_floats)


class CoreTarget(Target, TargetMemory, TargetOrigin):
    """The ELF core at ``path``; files of the target are looked for below ``sysroot``.

    Raises BadCore, ForeignArchitecture, NotPermitted. ``damage`` says what is missing from a damaged core.
    """

    kind = "core"
    debugger = "none"
    moment = TargetMoment()

    def __init__(self, path: str, sysroot: str | None = None, unpacked: str = "") -> None:
        """``unpacked``: the file to read if ``path`` is a compressed one."""
        self.path = path
        self._core = open_core(unpacked or path)
        self.architecture = architectures.by_machine(self._core.machine)
        self.command = self._core.arguments or self._core.name
        self._segments = self._core.segments
        self._starts = [segment.start for segment in self._segments]
        self.foreign = ForeignFiles.of_core(sysroot or "", self._source_belongs)
        self._files = MappedFiles(self._core.files, self._read_from_core, self.local_path, self.foreign)
        self._auxv = parse_auxv(self._core.raw_auxv)
        notes = self._core.threads
        self.pid = self._core.pid or notes[0].tid
        self._first = CoreFileThread(self.architecture, notes[0], signal_of(notes[0], self._core.written_by_debugger))
        others = [CoreFileThread(self.architecture, note, None) for note in notes[1:]]
        self._threads = sorted([self._first, *others], key=lambda thread: thread.tid)

    @property
    def memory(self) -> TargetMemory:
        return self

    @property
    def origin(self) -> TargetOrigin:
        return self

    def read(self, address: int, size: int) -> bytes:
        """Memory from the core, and from the mapped files if the core leaves it out. Raises MemoryFault."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0:
            start, _, offset, filesz, _ = self._segments[index]
            at = address - start
            if at + size <= filesz and size >= 0:
                data = self._core.data[offset + at : offset + at + size]
                if len(data) == size:
                    return data
        if size < 0 or address < 0 or size > 1 << 32:
            raise MemoryFault(address, size, "no sensible range")
        end, pieces, reason = address + size, [], ""
        position = address
        while position < end:
            piece, reason = self._read_piece(position, end - position)
            if not piece:
                raise MemoryFault(address, size, reason)
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)

    def threads(self) -> Sequence[TargetThread]:
        return self._threads

    def selected_thread(self) -> TargetThread | None:
        """The thread that the signal killed or, in a core by gcore, the one selected there: both write it first."""
        return self._first

    def maps(self) -> Sequence[MemoryMapping]:
        """NT_FILE and the PT_LOADs merged. Permissions are "" if the core does not have them."""
        return self._maps

    @cached_property
    def _maps(self) -> list[MemoryMapping]:
        maps: list[MemoryMapping] = []
        covered = 0
        for entry in self._core.files:
            start = max(entry.start, covered)
            if start < entry.end:
                maps += self._file_maps(entry, start)
                covered = entry.end
        file_starts = [entry.start for entry in self._core.files]
        for segment in self._segments:
            maps += self._anonymous_maps(segment, file_starts)
        return sorted(maps, key=lambda mapping: mapping.start)

    def auxv(self) -> Mapping[int, int]:
        return self._auxv

    def files_known_at(self) -> float | None:
        """When the core was written."""
        try:
            return os.stat(self.path).st_mtime  # noqa: PTH116
        except OSError:
            return None

    def executable(self) -> str | None:
        """The program's path as the target names it: the file in which AT_ENTRY lies."""
        entry = self._files.mapping_at(self._auxv.get(AT_ENTRY, 0))
        return linux.split_deleted(entry.path)[0] if entry else None

    def executable_build_id(self) -> str | None:
        """The build-id of the program, from the core alone; None if it has none, or the core lacks that page."""
        entry = self._files.mapping_at(self._auxv.get(AT_ENTRY, 0))
        return self._files.build_id(self._files.base_of(entry)) if entry else None

    def environ(self) -> Mapping[str, str]:
        """The initial environment, found on the stack by the copy of the auxiliary vector that follows it.

        Bounded as exec is: 6 MiB of arguments and environment (3/4 of _STK_LIM, fs/exec.c) and 128 KiB in one string
        (MAX_ARG_STRLEN, linux/binfmts.h).
        """
        strings: list[bytes] = []
        left = 6 << 20
        for pointer in self._environment_pointers():
            segment = self._segment_at(pointer)
            if not segment:
                continue
            start = segment.offset + pointer - segment.start
            end = self._core.find(b"\0", start, min(segment.offset + segment.filesz, start + 128 * 1024))
            if end >= 0 and end - start <= left:
                strings.append(self._core.data[start:end])
                left -= end - start
        return linux.parse_environ(b"\0".join(strings))

    def _source_belongs(self, path: str) -> bool:
        """A Python source below the folders of an interpreter whose own files are proven to be those of the core."""
        return path.endswith(".py") and "/../" not in path and path.startswith(self._python_folders)

    @cached_property
    def _python_folders(self) -> tuple[str, ...]:
        """PREFIX/lib/python3 of the interpreter, and each lib/python3.X/ that something was loaded from: a virtual
        environment has its own folder of packages."""
        folders: dict[str, None] = {}
        for entry in self._core.files:
            for pattern, replacement in _PYTHON_FILES:
                match = pattern.match(entry.path)
                folder = match.expand(replacement) if match else ""
                if folder and folder not in folders and self._files.is_proven(entry.path):
                    folders[folder] = None
        return tuple(folders)

    def damage(self) -> Sequence[str]:
        return self._core.warnings

    @property
    def is_truncated(self) -> bool:
        return self._core.is_truncated

    def close(self) -> None:
        self._files.close()
        self._core.close()

    def _segment_at(self, address: int) -> elf_core.MemorySegment | None:
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._segments[index].end:
            return self._segments[index]
        return None

    def _read_from_core(self, address: int, size: int) -> bytes:
        """Memory that the core itself has, b"" if any byte is missing."""
        pieces = []
        while size > 0:
            segment = self._segment_at(address)
            if not segment:
                return b""
            at = address - segment.start
            piece = self._core.data[segment.offset + at : segment.offset + min(at + size, segment.filesz)]
            if not piece:
                return b""
            pieces.append(piece)
            address += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _read_piece(self, address: int, size: int) -> tuple[bytes, str]:
        """At least one byte at ``address`` and at most ``size``; or b"" and the reason why it cannot be read."""
        segment = self._segment_at(address)
        if segment:
            at = address - segment.start
            if at < segment.filesz:
                data = self._core.data[segment.offset + at : segment.offset + min(at + size, segment.filesz)]
                return data, "in the part that is missing from this truncated core"
            size = min(size, segment.end - address)
        else:
            size = min(size, self._next_segment_start(address) - address)
        return self._files.read(address, size)

    def _next_segment_start(self, address: int) -> int:
        index = bisect.bisect_right(self._starts, address)
        return self._starts[index] if index < len(self._starts) else 1 << 64

    def _file_maps(self, entry: elf_core.FileMapping, start: int) -> Iterator[MemoryMapping]:
        """The parts of an NT_FILE entry, cut where a PT_LOAD with other permissions begins or ends."""
        path, deleted = linux.split_deleted(entry.path)
        while start < entry.end:
            segment = self._segment_at(start)
            if segment:
                end = min(segment.end, entry.end)
                permissions = permission_text(segment.flags)
            else:
                end = min(self._next_segment_start(start), entry.end)
                permissions = self._files.permissions_at(entry, entry.offset + start - entry.start)
            yield MemoryMapping(start, end, entry.offset + start - entry.start, path, permissions, deleted)
            start = end

    def _anonymous_maps(self, segment: elf_core.MemorySegment, file_starts: list[int]) -> Iterator[MemoryMapping]:
        """The parts of a PT_LOAD that no file backs."""
        start = segment.start
        while start < segment.end:
            entry = self._files.mapping_at(start)
            if entry:
                start = entry.end
                continue
            index = bisect.bisect_right(file_starts, start)
            end = min(segment.end, file_starts[index]) if index < len(file_starts) else segment.end
            # gdb's gcore marks guard pages (---p) and read-only pages alike as readable: which one it is, is unknown.
            is_unknown = self._core.written_by_debugger and not segment.flags & (PF_W | PF_X)
            permissions = "" if is_unknown else permission_text(segment.flags)
            yield MemoryMapping(start, end, 0, self._special_name(start, end), permissions)
            start = end

    def _special_name(self, start: int, end: int) -> str:
        """The kernel's name of anonymous memory, by what the auxiliary vector points to."""
        if start <= self._auxv.get(AT_SYSINFO_EHDR, 0) < end:
            return "[vdso]"
        if start <= self._auxv.get(AT_RANDOM, 0) < end:
            return "[stack]"
        return self.architecture.kernel_mappings.get(start, "")

    def _environment_pointers(self) -> list[int]:
        """The pointers to the environment's strings, which lie below the auxiliary vector on the first stack."""
        segment = self._segment_at(self._auxv.get(AT_RANDOM, 0))
        if not segment or len(self._core.raw_auxv) < 32:
            return []
        end = segment.offset + segment.filesz
        at = self._core.find(self._core.raw_auxv[:32], segment.offset, end) - 8
        if at < segment.offset or self._core.data[at : at + 8] != bytes(8):
            return []
        found: list[int] = []
        while at - 8 >= segment.offset and len(found) < 64 * 1024:
            at -= 8
            (pointer,) = struct.unpack_from("<Q", self._core.data, at)
            if pointer == 0:  # the end of argv
                return found[::-1]
            found.append(pointer)
        return []


class LentCore(CoreTarget):
    """A core that a debugger has loaded: its threads have the debugger's numbers."""

    program = ""
    """The path of the executable that the debugger was given."""

    def number_threads(self, numbers: Mapping[int, int]) -> None:
        """``numbers``: thread id → the debugger's number."""
        for thread in super().threads():
            thread.number = numbers.get(thread.tid)

    def threads(self) -> Sequence[TargetThread]:
        """All threads, by the debugger's number; those that it does not list come last."""
        return sorted(super().threads(), key=lambda thread: (thread.number is None, thread.number or thread.tid))

    def local_path(self, path: str) -> str:
        """The path below the sysroot; ``program`` for an executable that is not found there."""
        local = super().local_path(path)
        if self.program and path == self.executable() and self.foreign.exists(local) is False:
            self.foreign.give(self.program)
            return self.program
        return local


def signal_of(thread: elf_core.CoreThread, written_by_debugger: bool) -> Signal | None:
    """The signal that killed the process. The kernel dumps only for fatal ones; gcore also writes why it stopped."""
    number = thread.current_signal
    if number <= 0 or (written_by_debugger and number not in linux.CRASH_SIGNALS):
        return None
    if not thread.siginfo or thread.siginfo[0] != number:
        return Signal(number, linux.signal_name(number))
    _, code, address = thread.siginfo
    return Signal(number, linux.signal_name(number), code, linux.fault_address(number, code, address))


def open_core(path: str) -> elf_core.ElfCore:
    """The core file, as far as it can be read without its files. Raises BadCore, ForeignArchitecture, NotPermitted."""
    return elf_core.ElfCore(path, _check_machine)


def _check_machine(path: str, identity: Identity) -> None:
    if not identity.is_ours or not architectures.supported(identity.machine):
        title = architectures.machine_title(identity.machine)
        raise architectures.foreign(f"{path} is a core of a {identity.bits}-bit {title} process")
