"""A core dump, written by the kernel or by gcore, read without any debugger."""

from __future__ import annotations

import bisect
import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.engine.arch import Architecture, architectures
from gdbext.engine.formats import elf_core, elf_header
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import PF_W, PF_X, Identity, MappedElf, permission_text
from gdbext.engine.targets.base_target import (
    MemoryMapping,
    Signal,
    Target,
    TargetMemory,
    TargetMoment,
    TargetOrigin,
    TargetThread,
)
from gdbext.engine.targets.foreign_files import LARGEST_LIBRARY, ForeignFiles
from gdbext.engine.targets.system import linux
from gdbext.errors import MemoryFault, SymbolFileError

if TYPE_CHECKING:
    from gdbext.engine.formats.elf_header import Read

PIPE = "pipe:"
"""The beginning of the name of a core that the kernel is writing: pipe:PID:MEMORY:CORE, with two fds."""
_PYTHON_FILES = (
    (re.compile(r"(/.*)/bin/python3[^/]*$"), r"\1/lib/python3"),
    (re.compile(r"(/.*)/lib(?:64)?/(?:[^/]+/)?libpython3[^/]*$"), r"\1/lib/python3"),
    (re.compile(r"(/.*/lib(?:64)?/python3(?:\.\d+t?)?/).*\.so$"), r"\1"),
)
"""Files that an interpreter loads from its prefix, and the folders of the sources that belong to it."""


class CoreFileThread(TargetThread):
    """A thread as its NT_PRSTATUS note describes it. Cores do not have the names of threads."""

    def __init__(self, architecture: Architecture, note: elf_core.CoreThread, signal: Signal | None) -> None:
        """``note``: the NT_PRSTATUS note with what follows it; ``signal``: the one that killed the thread."""
        self.tid = note.tid
        self.signal = signal
        self._architecture = architecture
        self._note = note

    def registers(self) -> Mapping[str, int]:
        return self._architecture.unpack_registers(elf_core.NT_PRSTATUS, self._note.raw_registers)

    def float_registers(self) -> Mapping[str, int]:
        return self._architecture.unpack_floats(self._note.raw_floats)


class MappedFiles:
    """Reads memory that a core leaves out because a file has it, once the file is proven to be the mapped one.

    gcore and the kernel (coredump_filter 0x33, core(5)) leave out file-backed pages that were never written, all code
    included, but keep the first page of every ELF file. Only files that this page proves are used.
    """

    def __init__(
        self,
        files: Sequence[elf_core.FileMapping],
        in_core: Read,
        local_path: Callable[[str], str],
        foreign: ForeignFiles,
    ) -> None:
        """``in_core`` reads what the core itself has; ``local_path`` gives our name of a file of the target, which
        ``foreign`` opens."""
        self._files = files
        self._starts = [entry.start for entry in files]
        self._in_core = in_core
        self._local_path = local_path
        self._foreign = foreign
        self._opened: dict[tuple[str, int], tuple[mmap.mmap | None, str]] = {}
        """(path, address of its first byte) → (the proven file, None for none; why there is none)."""
        self._bases: dict[str, list[int]] = {}
        for entry in files:
            if entry.offset == 0:
                self._bases.setdefault(entry.path, []).append(entry.start)

    def close(self) -> None:
        for file, _ in self._opened.values():
            if file:
                file.close()
        self._opened.clear()

    def mapping_at(self, address: int) -> elf_core.FileMapping | None:
        """The file mapping that holds an address."""
        index = bisect.bisect_right(self._starts, address) - 1
        return self._files[index] if index >= 0 and address < self._files[index].end else None

    def base_of(self, entry: elf_core.FileMapping) -> int | None:
        """Address of the file's first byte: the nearest mapping of its offset 0 at or below ``entry``."""
        bases = self._bases.get(entry.path, [])
        index = bisect.bisect_right(bases, entry.start) - 1
        return bases[index] if index >= 0 else None

    def is_proven(self, path: str) -> bool:
        """True if the file at that path is the one that was mapped."""
        bases = self._bases.get(path, [])
        entry = self.mapping_at(bases[0]) if bases else None
        return bool(entry and self._open(entry)[0])

    def elf_at(self, base: int | None) -> MappedElf:
        """The ELF file whose first byte is mapped at an address, from the core alone; None: nothing is known of it."""
        return MappedElf(lambda offset, size: b"" if base is None else self._in_core(base + offset, size))

    def read(self, address: int, size: int) -> tuple[bytes, str]:
        """(up to ``size`` bytes at ``address``, not beyond the mapping; why there are none)."""
        entry = self.mapping_at(address)
        if not entry:
            return b"", "not in the core, and no file is mapped there"
        file, reason = self._open(entry)
        if not file:
            return b"", reason
        offset = entry.offset + address - entry.start
        data = file[offset : offset + min(size, entry.end - address)]
        return data, "" if data else f"beyond the end of {entry.path}"

    def _open(self, entry: elf_core.FileMapping) -> tuple[mmap.mmap | None, str]:
        """(the proven file of a mapping, None for none; why there is none)."""
        base = self.base_of(entry)
        if base is None:
            return None, f"not in the core, and nothing proves which {entry.path} was mapped"
        key = (entry.path, base)
        if key not in self._opened:
            self._opened[key] = self._open_proven(entry.path, base)
        return self._opened[key]

    def _open_proven(self, path: str, base: int) -> tuple[mmap.mmap | None, str]:
        """As ``_open``; ``path`` as the core names the file whose first byte is mapped at ``base``."""
        name, deleted = linux.split_deleted(path)
        if deleted:
            return None, f"not in the core, and {name} was deleted before the core was taken"
        first_page = self._in_core(base, linux.PAGE_SIZE)
        if not first_page:
            return None, f"not in the core, and nothing proves which {name} was mapped"
        local = self._local_path(name)
        try:
            fd = self._foreign.open(local, LARGEST_LIBRARY)
            try:
                file = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            return None, f"not in the core, and {local} cannot be read ({error})"
        reason = self._difference(first_page, base, file)
        if reason:
            file.close()
            return None, f"not in the core, and {local} is another file than the one mapped ({reason})"
        return file, ""

    def _difference(self, first_page: bytes, base: int, file: mmap.mmap) -> str:
        """Why the file is not the mapped one, "" if it is."""
        wanted = self.elf_at(base).build_id
        if not wanted:
            # Without a build-id the whole first page must agree: its header has the offset of the section
            # headers near the file's end, which another build practically never shares.
            return "" if file[: linux.PAGE_SIZE] == first_page else "its first page differs"
        try:
            actual = ElfImage(file, "").build_id
        except SymbolFileError:
            actual = None
        return "" if actual == wanted else f"build-id {actual or 'none'}, in the core {wanted}"


class CoreTarget(Target, TargetMemory, TargetOrigin):
    """The ELF core at ``path``; files of the target are searched for below ``sysroot``."""

    kind = "core"
    moment = TargetMoment()

    def __init__(self, path: str, sysroot: str | None = None, unpacked: str = "") -> None:
        """``unpacked``: the file to read if ``path`` is a compressed one. Raises BadCore, ForeignArchitecture,
        NotPermitted."""
        self.path = path
        self._core = open_core(unpacked or path)
        self.architecture = architectures.by_machine(self._core.machine)
        self.command = self._core.arguments or self._core.name
        self._segments = self._core.segments
        self._starts = [segment.start for segment in self._segments]
        self.foreign = ForeignFiles.of_core(sysroot or "", self._source_belongs)
        self._files = MappedFiles(self._core.files, self._read_from_core, self.local_path, self.foreign)
        self._auxv = elf_header.parse_auxv(self._core.raw_auxv)
        notes = self._core.threads
        self.pid = self._core.pid or notes[0].tid
        self._first = CoreFileThread(self.architecture, notes[0], signal_of(notes[0], self._core.written_by_debugger))
        others = [CoreFileThread(self.architecture, note, None) for note in notes[1:]]
        self._threads = sorted([self._first, *others], key=lambda thread: thread.tid)

    def read(self, address: int, size: int) -> bytes:
        """Memory from the core, and from the mapped files if the core leaves it out. Raises MemoryFault."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and size >= 0:  # the usual case, quickly
            start, _, offset, filesz, _ = self._segments[index]
            if address - start + size <= filesz:
                data = self._core.data[offset + address - start : offset + address - start + size]
                if len(data) == size:
                    return data
        if size < 0 or address < 0 or size > 1 << 32:
            raise MemoryFault(address, size, "no sensible range")
        pieces, position, left = [], address, size
        while left > 0:
            segment = self._segment_at(position)
            if segment and position - segment.start < segment.filesz:
                piece = self._piece_of(segment, position, left)
                reason = "in the part that is missing from this truncated core"
            else:
                limit = segment.end if segment else self._next_segment_start(position)
                piece, reason = self._files.read(position, min(left, limit - position))
            if not piece:
                raise MemoryFault(address, size, reason)
            pieces.append(piece)
            position += len(piece)
            left -= len(piece)
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
        """See ``maps``."""
        maps: list[MemoryMapping] = []
        covered = 0  # the end of the file mappings so far: damaged ones may overlap
        for entry in self._core.files:
            maps += self._file_maps(entry, max(entry.start, covered))
            covered = max(covered, entry.end)
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

    @cached_property
    def _program(self) -> elf_core.FileMapping | None:
        """The mapping in which AT_ENTRY lies."""
        return self._files.mapping_at(self._auxv.get(elf_header.AT_ENTRY, 0))

    def executable(self) -> str | None:
        """The program's path as the target names it."""
        return linux.split_deleted(self._program.path)[0] if self._program else None

    def executable_build_id(self) -> str | None:
        """The build-id of the program, from the core alone; None if it has none, or the core lacks that page."""
        return self._files.elf_at(self._files.base_of(self._program)).build_id if self._program else None

    def environ(self) -> Mapping[str, str]:
        """The initial environment, found on the stack by the copy of the auxiliary vector that follows it. Bounded as
        exec is: 6 MiB of arguments and environment (3/4 of _STK_LIM, fs/exec.c) and 128 KiB in one string
        (MAX_ARG_STRLEN, linux/binfmts.h)."""
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
        """True for a Python source below the folders of an interpreter whose files are proven to be the core's."""
        return path.endswith(".py") and "/../" not in path and path.startswith(self._python_folders)

    @cached_property
    def _python_folders(self) -> tuple[str, ...]:
        """PREFIX/lib/python3 of the interpreter, and each lib/python3.X/ that something was loaded from: a virtual
        environment has its own folder of packages."""
        folders: list[str] = []
        for entry in self._core.files:
            for pattern, replacement in _PYTHON_FILES:
                match = pattern.match(entry.path)
                folder = match.expand(replacement) if match else ""
                if folder and folder not in folders and self._files.is_proven(entry.path):
                    folders.append(folder)
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
        """The PT_LOAD that covers an address; the core may lack its bytes."""
        index = bisect.bisect_right(self._starts, address) - 1
        return self._segments[index] if index >= 0 and address < self._segments[index].end else None

    def _read_from_core(self, address: int, size: int) -> bytes:
        """Memory that the core itself has, b"" if any byte is missing."""
        pieces = []
        while size > 0 and (segment := self._segment_at(address)) and (piece := self._piece_of(segment, address, size)):
            pieces.append(piece)
            address += len(piece)
            size -= len(piece)
        return b"" if size > 0 else b"".join(pieces)

    def _piece_of(self, segment: elf_core.MemorySegment, address: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``address`` that the core has of a segment."""
        skip = address - segment.start
        return self._core.data[segment.offset + skip : segment.offset + min(skip + size, segment.filesz)]

    def _next_segment_start(self, address: int) -> int:
        """Start of the first PT_LOAD above an address; the end of all addresses if there is none."""
        index = bisect.bisect_right(self._starts, address)
        return self._starts[index] if index < len(self._starts) else 1 << 64

    def _file_maps(self, entry: elf_core.FileMapping, start: int) -> Iterator[MemoryMapping]:
        """The parts of an NT_FILE entry from ``start`` on, cut where the permissions of PT_LOADs change."""
        path, deleted = linux.split_deleted(entry.path)
        while start < entry.end:
            segment, offset = self._segment_at(start), entry.offset + start - entry.start
            if segment:
                permissions = permission_text(segment.flags)
            else:
                permissions = self._files.elf_at(self._files.base_of(entry)).permissions_at(offset, linux.PAGE_SIZE)
            end = min(segment.end if segment else self._next_segment_start(start), entry.end)
            yield MemoryMapping(start, end, offset, path, permissions, deleted)
            start = end

    def _anonymous_maps(self, segment: elf_core.MemorySegment, file_starts: list[int]) -> Iterator[MemoryMapping]:
        """The parts of a PT_LOAD that no file backs; ``file_starts``: of all NT_FILE entries, sorted."""
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
            name = self.architecture.kernel_mappings.get(start, "")
            if start <= self._auxv.get(elf_header.AT_SYSINFO_EHDR, 0) < end:
                name = "[vdso]"
            elif start <= self._auxv.get(elf_header.AT_RANDOM, 0) < end:
                name = "[stack]"
            yield MemoryMapping(start, end, 0, name, permissions)
            start = end

    def _environment_pointers(self) -> list[int]:
        """The pointers to the environment's strings, which lie below the auxiliary vector on the first stack."""
        segment = self._segment_at(self._auxv.get(elf_header.AT_RANDOM, 0))
        if not segment or len(self._core.raw_auxv) < 32:
            return []
        end = segment.offset + segment.filesz
        null = self._core.find(self._core.raw_auxv[:32], segment.offset, end) - 8  # the end of the pointers
        if null < segment.offset or self._core.data[null : null + 8] != bytes(8):
            return []
        first = max(segment.offset + (null - segment.offset) % 8, null - 8 * 64 * 1024)
        words = struct.unpack(f"<{(null - first) // 8}Q", self._core.data[first:null])[::-1]
        count = words.index(0) if 0 in words else 0  # up to the end of argv
        return list(words[:count])[::-1]


class LentCore(CoreTarget):
    """A core that a debugger has loaded, with the debugger's numbers of the threads."""

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
            self.foreign.permit(self.program)
            return self.program
        return local


def signal_of(thread: elf_core.CoreThread, written_by_debugger: bool) -> Signal | None:
    """The signal that killed the process, by the notes of its first thread; None if none did. The kernel dumps only for
    fatal signals; a debugger's core may have the signal that stopped the process."""
    number = thread.current_signal
    if number <= 0 or (written_by_debugger and number not in linux.CRASH_SIGNALS):
        return None
    if not thread.siginfo or thread.siginfo[0] != number:
        return Signal(number, linux.signal_name(number))
    _, code, address = thread.siginfo
    return Signal(number, linux.signal_name(number), code, linux.fault_address(number, code, address))


def open_core(path: str) -> elf_core.ElfCore:
    """The core file, as far as it can be read without its files. Raises BadCore, ForeignArchitecture, NotPermitted."""

    def check_machine(path: str, identity: Identity) -> None:
        if not identity.is_ours or not architectures.supported(identity.machine):
            title = architectures.machine_title(identity.machine)
            raise architectures.foreign(f"{path} is a core of a {identity.bits}-bit {title} process")

    return elf_core.ElfCore(path, check_machine)
