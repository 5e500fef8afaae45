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


class MappedFiles:
    """Reads memory that a core leaves out because a file has it, once the file is proven to be the mapped one.

    gcore and the kernel (coredump_filter 0x33, core(5)) leave out file-backed pages that were never written, all code
    included, but keep the first page of every ELF file. Only files that this page proves are used.

    ``in_core`` reads what the core itself has; ``local_path`` gives our name of a file of the target, and ``foreign``
    opens that.
    """

    def __init__(
        self,
        files: Sequence[elf_core.FileMapping],
        in_core: Read,
        local_path: Callable[[str], str],
        foreign: ForeignFiles,
    ) -> None:
        self._files = files
        self._starts = [entry.start for entry in files]
        self._in_core = in_core
        self._local_path = local_path
        self._foreign = foreign
        self._opened: dict[tuple[str, int], tuple[mmap.mmap | None, str]] = {}
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
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._files[index].end:
            return self._files[index]
        return None

    def base_of(self, entry: elf_core.FileMapping) -> int | None:
        """Address of the file's first byte: the nearest mapping of its offset 0 at or below ``entry``."""
        bases = self._bases.get(entry.path, [])
        index = bisect.bisect_right(bases, entry.start) - 1
        return bases[index] if index >= 0 else None

    def is_proven(self, path: str) -> bool:
        """The file that is found here for ``path`` is the one that was mapped."""
        bases = self._bases.get(path, [])
        entry = self.mapping_at(bases[0]) if bases else None
        return bool(entry and self._open(entry)[0])

    def permissions_at(self, entry: elf_core.FileMapping, offset: int) -> str:
        """The permissions ("r-xp") of the file of a mapping at a file offset, from the core alone; "" if unknown."""
        return MappedElf(self._memory_from(self.base_of(entry))).permissions_at(offset, linux.PAGE_SIZE)

    def build_id(self, base: int | None) -> str | None:
        """The build-id of the file whose first byte is mapped at an address, from the core alone; None if unknown."""
        return MappedElf(self._memory_from(base)).build_id

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
        """(the proven file that is mapped there, None for none; the reason why there is none)."""
        base = self.base_of(entry)
        if base is None:
            return None, f"not in the core, and nothing proves which {entry.path} was mapped"
        key = (entry.path, base)
        if key not in self._opened:
            self._opened[key] = self._open_proven(entry.path, base)
        return self._opened[key]

    def _open_proven(self, path: str, base: int) -> tuple[mmap.mmap | None, str]:
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
        wanted = self.build_id(base)
        if not wanted:
            # Without a build-id the whole first page must agree: its header has the offset of the section
            # headers near the file's end, which another build practically never shares.
            return "" if file[: linux.PAGE_SIZE] == first_page else "its first page differs"
        try:
            actual = ElfImage(file, "").build_id
        except SymbolFileError:
            actual = None
        return "" if actual == wanted else f"build-id {actual or 'none'}, in the core {wanted}"

    def _memory_from(self, base: int | None) -> Read:
        """The reader of core memory by offsets from ``base``; it has no bytes if that is None."""
        return lambda offset, size: b"" if base is None else self._in_core(base + offset, size)


class CoreTarget(Target, TargetMemory, TargetOrigin):
    """The ELF core at ``path``; files of the target are looked for below ``sysroot``. Raises BadCore,
    ForeignArchitecture, NotPermitted. ``damage`` says what is missing from a damaged core."""

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
        self._auxv = elf_header.parse_auxv(self._core.raw_auxv)
        notes = self._core.threads
        self.pid = self._core.pid or notes[0].tid
        self._first = CoreFileThread(self.architecture, notes[0], signal_of(notes[0], self._core.written_by_debugger))
        others = [CoreFileThread(self.architecture, note, None) for note in notes[1:]]
        self._threads = sorted([self._first, *others], key=lambda thread: thread.tid)

    def read(self, address: int, size: int) -> bytes:
        """Memory from the core, and from the mapped files if the core leaves it out. Raises MemoryFault."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0:
            start, _, offset, filesz, _ = self._segments[index]
            skip = address - start
            if skip + size <= filesz and size >= 0:
                data = self._core.data[offset + skip : offset + skip + size]
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
        entry = self._files.mapping_at(self._auxv.get(elf_header.AT_ENTRY, 0))
        return linux.split_deleted(entry.path)[0] if entry else None

    def executable_build_id(self) -> str | None:
        """The build-id of the program, from the core alone; None if it has none, or the core lacks that page."""
        entry = self._files.mapping_at(self._auxv.get(elf_header.AT_ENTRY, 0))
        return self._files.build_id(self._files.base_of(entry)) if entry else None

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
        offset = self._core.find(self._core.raw_auxv[:32], segment.offset, end) - 8
        if offset < segment.offset or self._core.data[offset : offset + 8] != bytes(8):
            return []
        pointers: list[int] = []
        while offset - 8 >= segment.offset and len(pointers) < 64 * 1024:
            offset -= 8
            (pointer,) = struct.unpack_from("<Q", self._core.data, offset)
            if pointer == 0:  # the end of argv
                return pointers[::-1]
            pointers.append(pointer)
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
            self.foreign.permit(self.program)
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

    def check_machine(path: str, identity: Identity) -> None:
        if not identity.is_ours or not architectures.supported(identity.machine):
            title = architectures.machine_title(identity.machine)
            raise architectures.foreign(f"{path} is a core of a {identity.bits}-bit {title} process")

    return elf_core.ElfCore(path, check_machine)
