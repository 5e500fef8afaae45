"""A core dump read without any debugger. Written by the kernel or by gcore, both are the same here."""

from __future__ import annotations

import bisect
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from gdbext.engine.arch import Architecture, architectures
from gdbext.engine.formats import auxv, elf_core
from gdbext.engine.formats.elf_header import PF_W, PF_X, Identity, permission_text
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
MAX_ENVIRONMENT = 64 * 1024
MAX_ENVIRONMENT_BYTES = 6 << 20
MAX_STRING = 128 * 1024
"""Variables looked at, bytes of all of them and of one: the kernel lets exec have no more than 6 MiB of arguments and
environment (3/4 of _STK_LIM, fs/exec.c) and 128 KiB in one string (MAX_ARG_STRLEN, linux/binfmts.h)."""


_PYTHON_FILES = (
    (re.compile(r"(/.*)/bin/python3[^/]*$"), r"\1/lib/python3"),
    (re.compile(r"(/.*)/lib(?:64)?/(?:[^/]+/)?libpython3[^/]*$"), r"\1/lib/python3"),
    (re.compile(r"(/.*/lib(?:64)?/python3(?:\.\d+t?)?/).*\.so$"), r"\1"),
)
"""Files that an interpreter loads from its prefix, and the folders of sources that go with it."""


class CoreFileThread(TargetThread):
    """A thread as its NT_PRSTATUS note describes it. Cores do not record the names of threads."""

    def __init__(self, architecture: Architecture, note: elf_core.CoreThread, signal: Signal | None) -> None:
        self.tid = note.tid
        self.number = None
        self.name = None
        self.signal = signal
        self._architecture = architecture
        self._note = note

    def registers(self) -> Mapping[str, int]:
        """All of the architecture's general register set."""
        return self._architecture.unpack_registers(elf_core.NT_PRSTATUS, self._note.raw_registers)

    def float_registers(self) -> Mapping[str, int]:
        """Those of the thread's NT_PRFPREG note."""
        return self._architecture.unpack_floats(self._note.raw_floats)


class CoreTarget(Target, TargetMemory, TargetOrigin):
    """The ELF core at ``path``; files of the target are looked for below ``sysroot``.

    Raises BadCore, ForeignArchitecture, NotPermitted. ``damage`` says what is missing from a damaged core.
    """

    kind = "core"
    debugger = "none"
    moment = TargetMoment()

    def __init__(self, path: str, sysroot: str | None = None, unpacked: str = "") -> None:
        """``unpacked``: the file to read where ``path`` is a compressed one."""
        self.path = path
        self._core = open_core(unpacked or path)
        self.architecture = architectures.by_machine(self._core.machine)
        self.command = self._core.arguments or self._core.name
        self._segments = self._core.segments
        self._starts = [segment.start for segment in self._segments]
        self.foreign = ForeignFiles.of_core(sysroot or "", self._source_belongs)
        self._files = MappedFiles(self._core.files, self._read_from_core, self.local_path, self.foreign)
        self._auxv = auxv.parse_auxv(self._core.raw_auxv)
        notes = self._core.threads
        self.pid = self._core.pid or notes[0].tid
        self._first = CoreFileThread(self.architecture, notes[0], signal_of(notes[0], self._core.written_by_debugger))
        others = [CoreFileThread(self.architecture, note, None) for note in notes[1:]]
        self._threads = sorted([self._first, *others], key=lambda thread: thread.tid)
        self._maps: list[MemoryMapping] | None = None

    @property
    def memory(self) -> TargetMemory:
        return self

    @property
    def origin(self) -> TargetOrigin:
        return self

    def read(self, address: int, size: int) -> bytes:
        """Memory from the core, and from the mapped files where the core leaves it out. Raises MemoryFault."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0:
            start, _, offset, filesz, _ = self._segments[index]
            at = address - start
            if at + size <= filesz and size >= 0:
                found = self._core.data[offset + at : offset + at + size]
                if len(found) == size:
                    return found
        return self._read_in_pieces(address, size)

    def threads(self) -> Sequence[TargetThread]:
        """All threads of the core, by tid."""
        return self._threads

    def selected_thread(self) -> TargetThread | None:
        """The thread that the signal killed or, in a core by gcore, the one selected there: both write it first."""
        return self._first

    def maps(self) -> Sequence[MemoryMapping]:
        """NT_FILE and the PT_LOADs merged. Permissions are "" where the core does not tell them."""
        if self._maps is None:
            self._maps = sorted(self._merged_maps(), key=lambda mapping: mapping.start)
        return self._maps

    def auxv(self) -> Mapping[int, int]:
        """The auxiliary vector, of the NT_AUXV note."""
        return self._auxv

    def files_known_at(self) -> float | None:
        """The time when the core was written."""
        try:
            return os.stat(self.path).st_mtime  # noqa: PTH116
        except OSError:
            return None

    def executable(self) -> str | None:
        """The program's path as the target names it: the file in which AT_ENTRY lies."""
        entry = self._files.mapping_at(self._auxv.get(auxv.AT_ENTRY, 0))
        return linux.split_deleted(entry.path)[0] if entry else None

    def executable_build_id(self) -> str | None:
        """The build-id of the program, from the core alone; None if it has none, or the core has not that page."""
        entry = self._files.mapping_at(self._auxv.get(auxv.AT_ENTRY, 0))
        return self._files.build_id(self._files.base_of(entry)) if entry else None

    def environ(self) -> Mapping[str, str]:
        """The initial environment, found on the stack through the copy of the auxiliary vector that follows it."""
        strings: list[bytes] = []
        left = MAX_ENVIRONMENT_BYTES
        for pointer in self._environment_pointers():
            text = self._string(pointer)
            if text is not None and len(text) <= left:
                strings.append(text)
                left -= len(text)
        return linux.parse_environ(b"\0".join(strings))

    def _source_belongs(self, path: str) -> bool:
        """A Python source below the folders of an interpreter whose own files are proven to be those of the core."""
        return path.endswith(".py") and "/../" not in path and path.startswith(self._python_folders)

    @cached_property
    def _python_folders(self) -> tuple[str, ...]:
        """PREFIX/lib/python3 of the interpreter, and each lib/python3.X/ that something was loaded from: of an
        environment, whose folder of packages is its own."""
        found: dict[str, None] = {}
        for entry in self._core.files:
            for pattern, folder in _PYTHON_FILES:
                match = pattern.match(entry.path)
                name = match.expand(folder) if match else ""
                if name and name not in found and self._files.is_proven(entry.path):
                    found[name] = None
        return tuple(found)

    def damage(self) -> Sequence[str]:
        """The parts that are missing from the file."""
        return self._core.warnings

    @property
    def is_truncated(self) -> bool:
        """The end of the file is missing."""
        return self._core.is_truncated

    def close(self) -> None:
        """Unmap the core and all files; idempotent."""
        self._files.close()
        self._core.close()

    def _segment_at(self, address: int) -> elf_core.MemorySegment | None:
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._segments[index].end:
            return self._segments[index]
        return None

    def _read_from_core(self, address: int, size: int) -> bytes:
        """Memory that the core itself holds, b"" where any byte of it is not there."""
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

    def _read_in_pieces(self, address: int, size: int) -> bytes:
        if size < 0 or address < 0 or size > 1 << 32:
            raise MemoryFault(address, size, "no sensible range")
        start, wanted, pieces = address, size, []
        while size > 0:
            piece = self._read_piece(address, size, start, wanted)
            pieces.append(piece)
            address += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _read_piece(self, address: int, size: int, start: int, wanted: int) -> bytes:
        """Read at least one byte at ``address``; MemoryFault names the whole read and why it ends here."""
        segment = self._segment_at(address)
        if segment:
            at = address - segment.start
            if at < segment.filesz:
                held = self._core.data[segment.offset + at : segment.offset + min(at + size, segment.filesz)]
                if held:
                    return held
                raise MemoryFault(start, wanted, "in the part that is missing from this truncated core")
            size = min(size, segment.end - address)
        else:
            size = min(size, self._next_segment_start(address) - address)
        found, reason = self._files.read(address, size)
        if not found:
            raise MemoryFault(start, wanted, reason)
        return found

    def _next_segment_start(self, address: int) -> int:
        index = bisect.bisect_right(self._starts, address)
        return self._starts[index] if index < len(self._starts) else 1 << 64

    def _merged_maps(self) -> Iterator[MemoryMapping]:
        covered = 0
        for entry in self._core.files:
            start = max(entry.start, covered)
            if start < entry.end:
                yield from self._file_maps(entry, start)
                covered = entry.end
        starts = [entry.start for entry in self._core.files]
        for segment in self._segments:
            yield from self._anonymous_maps(segment, starts)

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
            yield MemoryMapping(start, end, 0, self._special_name(start, end), self._anonymous_permissions(segment))
            start = end

    def _anonymous_permissions(self, segment: elf_core.MemorySegment) -> str:
        # gdb's gcore marks guard pages (---p) and read-only pages alike as readable: which one it is, nobody knows.
        if self._core.written_by_debugger and not segment.flags & (PF_W | PF_X):
            return ""
        return permission_text(segment.flags)

    def _special_name(self, start: int, end: int) -> str:
        """The kernel's name of anonymous memory, by what the auxiliary vector points to in there."""
        if start <= self._auxv.get(auxv.AT_SYSINFO_EHDR, 0) < end:
            return "[vdso]"
        if start <= self._auxv.get(auxv.AT_RANDOM, 0) < end:
            return "[stack]"
        return self.architecture.kernel_mappings.get(start, "")

    def _environment_pointers(self) -> list[int]:
        """The pointers to the environment's strings: what lies below the auxiliary vector on the first stack."""
        segment = self._segment_at(self._auxv.get(auxv.AT_RANDOM, 0))
        if not segment or len(self._core.raw_auxv) < 32:
            return []
        end = segment.offset + segment.filesz
        at = self._core.find(self._core.raw_auxv[:32], segment.offset, end) - 8
        if at < segment.offset or self._core.data[at : at + 8] != bytes(8):
            return []
        found: list[int] = []
        while at - 8 >= segment.offset and len(found) < MAX_ENVIRONMENT:
            at -= 8
            (pointer,) = struct.unpack_from("<Q", self._core.data, at)
            if pointer == 0:  # the end of argv
                return found[::-1]
            found.append(pointer)
        return []

    def _string(self, address: int) -> bytes | None:
        segment = self._segment_at(address)
        if not segment:
            return None
        at = segment.offset + address - segment.start
        end = self._core.find(b"\0", at, min(segment.offset + segment.filesz, at + MAX_STRING))
        return self._core.data[at:end] if end >= 0 else None


class LentCore(CoreTarget):
    """A core that a debugger has loaded: its threads have the debugger's numbers."""

    program = ""
    """The path of the executable that the debugger was given."""

    def number_threads(self, numbers: Mapping[int, int]) -> None:
        """``numbers``: thread id to the debugger's number."""
        for thread in super().threads():
            thread.number = numbers.get(thread.tid)

    def threads(self) -> Sequence[TargetThread]:
        """All threads, by the debugger's number; those that it does not show come last."""
        return sorted(super().threads(), key=lambda thread: (thread.number is None, thread.number or thread.tid))

    def local_path(self, path: str) -> str:
        """The path below the sysroot; ``program`` where that of the executable is not found there."""
        local = super().local_path(path)
        if self.program and path == self.executable() and self.foreign.exists(local) is False:
            self.foreign.give(self.program)
            return self.program
        return local


def signal_of(thread: elf_core.CoreThread, written_by_debugger: bool) -> Signal | None:
    """The signal that ended the process. The kernel dumps only for fatal ones; gcore also writes what it stopped by."""
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
    """Raises ForeignArchitecture for a core that cannot be read."""
    if not identity.is_ours or not architectures.supported(identity.machine):
        title = architectures.machine_title(identity.machine)
        raise architectures.foreign(f"{path} is a core of a {identity.bits}-bit {title} process")
