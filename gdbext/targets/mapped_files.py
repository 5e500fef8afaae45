"""Memory that a core leaves out because a file holds it: read from that file, once it is proven to be the same one.

gcore and the kernel (coredump_filter 0x33, core(5)) leave out file-backed pages that were never written, all code
among them, but keep the first page of every ELF file. Only what that page proves is used.
"""

from __future__ import annotations

import bisect
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import Callable, Optional

from gdbext.formats.elf_core import PT_LOAD, PT_NOTE, FileMapping
from gdbext.targets.linux import PAGE_SIZE, split_deleted

NT_GNU_BUILD_ID = 3
MAX_PROGRAM_HEADERS = 256
MAX_NOTE_SIZE = 1 << 20

_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")

Reader = Callable[[int, int], Optional[bytes]]
"""Address (or file offset) and size to bytes, None where they are not there."""


class ProgramHeaders:
    """The program headers of an ELF file as its first page and ``read`` show them.

    ``read`` takes addresses relative to the file's first byte in memory.
    """

    def __init__(self, read: Reader) -> None:
        self._read = read
        self.headers: list[tuple[int, ...]] = []
        header = read(0, 64)
        if header is None or header[:6] != b"\x7fELF\x02\x01":
            return
        (table_at,) = struct.unpack_from("<Q", header, 32)
        entry_size, count = struct.unpack_from("<HH", header, 54)
        if entry_size != _PROGRAM_HEADER.size or not 0 < count <= MAX_PROGRAM_HEADERS:
            return
        table = read(table_at, count * entry_size)
        if table is not None:
            self.headers = list(_PROGRAM_HEADER.iter_unpack(table))

    def build_id(self) -> bytes | None:
        """The NT_GNU_BUILD_ID note, None where there is none or it is not in reach."""
        base = min((h[3] for h in self.headers if h[0] == PT_LOAD), default=0)
        for kind, _, _, vaddr, _, size, _, _ in self.headers:
            if kind == PT_NOTE and size <= MAX_NOTE_SIZE and vaddr >= base:
                found = _build_id_in(self._read(vaddr - base, size))
                if found is not None:
                    return found
        return None

    def permissions_at(self, offset: int) -> str:
        """What a mapping of that file offset allows ("r-xp"), "" where no PT_LOAD covers it."""
        for kind, flags, start, _, _, size, _, _ in self.headers:
            if kind == PT_LOAD and start & -PAGE_SIZE <= offset < start + size:
                return permission_text(flags)
        return ""


def permission_text(flags: int) -> str:
    """p_flags as /proc/PID/maps writes them; the mapping is taken to be private, as every PT_LOAD is."""
    return ("r" if flags & 4 else "-") + ("w" if flags & 2 else "-") + ("x" if flags & 1 else "-") + "p"


def _build_id_in(notes: bytes | None) -> bytes | None:
    offset = 0
    while notes is not None and offset + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, offset)
        name_at = offset + 12
        start = name_at + (name_size + 3 & ~3)
        if kind == NT_GNU_BUILD_ID and notes[name_at : name_at + 4] == b"GNU\0" and start + size <= len(notes):
            return notes[start : start + size]
        offset = start + (size + 3 & ~3)
    return None


class MappedFiles:
    """Reads file-backed memory through NT_FILE.

    ``in_core`` reads what the core itself holds; ``local_path`` says where a file of the target is found here.
    """

    def __init__(self, files: Sequence[FileMapping], in_core: Reader, local_path: Callable[[str], str]) -> None:
        self._files = files
        self._starts = [entry.start for entry in files]
        self._in_core = in_core
        self._local_path = local_path
        self._opened: dict[tuple[str, int], tuple[mmap.mmap | None, str]] = {}
        self._bases: dict[str, list[int]] = {}
        for entry in files:
            if entry.offset == 0:
                self._bases.setdefault(entry.path, []).append(entry.start)

    def close(self) -> None:
        """Unmap all files; idempotent."""
        for file, _ in self._opened.values():
            if file is not None:
                file.close()
        self._opened.clear()

    def mapping_at(self, address: int) -> FileMapping | None:
        """The NT_FILE entry that covers an address."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._files[index].end:
            return self._files[index]
        return None

    def base_of(self, entry: FileMapping) -> int | None:
        """Where the file's first byte is mapped: the nearest mapping of offset 0 of the same file at or below."""
        bases = self._bases.get(entry.path, [])
        index = bisect.bisect_right(bases, entry.start) - 1
        return bases[index] if index >= 0 else None

    def headers_of(self, entry: FileMapping) -> ProgramHeaders:
        """The program headers of the file behind a mapping, from the core alone."""
        return ProgramHeaders(self._memory_from(self.base_of(entry)))

    def read(self, address: int, size: int) -> tuple[bytes, str]:
        """Up to ``size`` bytes at ``address``, not beyond the mapping; b"" and the reason where that cannot be."""
        entry = self.mapping_at(address)
        if entry is None:
            return b"", "not in the core, and no file is mapped there"
        file, reason = self._open(entry)
        if file is None:
            return b"", reason
        offset = entry.offset + address - entry.start
        found = file[offset : offset + min(size, entry.end - address)]
        if not found:
            return b"", f"beyond the end of {entry.path}"
        return found, ""

    def _open(self, entry: FileMapping) -> tuple[mmap.mmap | None, str]:
        base = self.base_of(entry)
        if base is None:
            return None, f"not in the core, and nothing proves which {entry.path} was mapped"
        key = (entry.path, base)
        if key not in self._opened:
            self._opened[key] = self._open_proven(entry.path, base)
        return self._opened[key]

    def _open_proven(self, path: str, base: int) -> tuple[mmap.mmap | None, str]:
        name, deleted = split_deleted(path)
        if deleted:
            return None, f"not in the core, and {name} was deleted before the core was taken"
        first_page = self._in_core(base, PAGE_SIZE)
        if first_page is None:
            return None, f"not in the core, and nothing proves which {name} was mapped"
        local = self._local_path(name)
        try:
            if not stat.S_ISREG(os.stat(local).st_mode):  # noqa: PTH116 - opening a device or a pipe may do something
                return None, f"not in the core, and {local} is no regular file"
            with open(local, "rb") as handle:
                file = mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            return None, f"not in the core, and {local} cannot be read ({error})"
        reason = self._difference(first_page, base, file)
        if reason:
            file.close()
            return None, f"not in the core, and {local} is another file than the one mapped ({reason})"
        return file, ""

    def _difference(self, first_page: bytes, base: int, file: mmap.mmap) -> str:
        """Why the file is not the mapped one, "" when it is."""
        wanted = ProgramHeaders(self._memory_from(base)).build_id()
        if wanted is None:
            # Without a build-id the whole first page must agree: its header holds the offset of the section
            # headers near the file's end, which another build practically never shares.
            return "" if file[:PAGE_SIZE] == first_page else "its first page differs"
        found = ProgramHeaders(_by_virtual_address(file)).build_id()
        if found == wanted:
            return ""
        return f"build-id {found.hex() if found else 'none'}, in the core {wanted.hex()}"

    def _memory_from(self, base: int | None) -> Reader:
        return lambda offset, size: None if base is None else self._in_core(base + offset, size)


def _by_virtual_address(file: mmap.mmap) -> Reader:
    """Reads a file as if it were mapped from its lowest virtual address."""
    header = ProgramHeaders(lambda offset, size: file[offset : offset + size])
    loads = [h for h in header.headers if h[0] == PT_LOAD]
    base = min((h[3] for h in loads), default=0)

    def read(address: int, size: int) -> bytes | None:
        for offset in _file_offsets(loads, base + address, size):
            return file[offset : offset + size]
        return None

    return read


def _file_offsets(loads: Sequence[tuple[int, ...]], vaddr: int, size: int) -> Iterator[int]:
    for _, _, offset, start, _, filesz, _, _ in loads:
        if start <= vaddr and vaddr + size <= start + filesz:
            yield offset + vaddr - start
