"""One 64-bit little-endian ELF file, mapped: segments, sections, the dynamic section (System V gABI, chapter 4)."""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import suppress
from errno import EINVAL
from functools import cached_property
from stat import S_ISREG
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cache import file_key
from gdbext.engine.formats import elf_header
from gdbext.errors import SymbolFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gdbext.engine.formats.elf_header import Data

SHF_EXECINSTR = 4
SHT_SYMTAB, SHT_NOBITS, SHT_DYNSYM = 2, 8, 11
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_GNU_HASH, DT_VERSYM = 4, 5, 6, 10, 0x6FFFFEF5, 0x6FFFFFF0
DT_RELA, DT_RELASZ, DT_RELACOUNT, DT_JMPREL, DT_PLTRELSZ = 7, 8, 0x6FFFFFF9, 23, 2

_SHDR = struct.Struct("<IIQQQQIIQQ")
_DYN = struct.Struct("<QQ")
_MAX_SECTIONS = 65536
_MAX_DYNAMIC = 4096
_PIECE = 1 << 20


class ElfSection(NamedTuple):
    """One section header (Elf64_Shdr); ``link`` is the number of the section it refers to, ``size`` in bytes."""

    number: int
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    entsize: int


class ElfImage:
    """One ELF file. ``data`` is its contents by file offset; addresses are the file's own (vaddr).

    Opening reads the ELF and program headers only. A file that is truncated while it is mapped would kill us with
    SIGBUS, as with any debugger; package managers replace files instead.
    """

    from_memory = False  # True for a MemoryImage: the part of the file that the target has mapped

    def __init__(self, data: Data, path: str, identity: str = "", machine: int | None = None) -> None:
        """``identity`` is the file's name in the cache (cache.file_key), "" for none. Raises SymbolFileError, also for
        another machine than ``machine``, if given."""
        self.path = path
        self.data = data
        self.identity = identity
        self.size = len(data)
        self.header = elf_header.parse_header(data, machine)
        self.machine = self.header.machine
        self.entry = self.header.entry
        self.segments = elf_header.parse_segments(data, self.header)
        self.loads = tuple(segment for segment in self.segments if segment.type == elf_header.PT_LOAD)

    @classmethod
    def open(cls, path: str, machine: int | None = None) -> ElfImage:
        """Map the file at ``path``, which the user or gdbext named. Raises SymbolFileError."""

        def open_file() -> int:
            """An fd of the file. Raises OSError, also if it is not regular."""
            if not S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - opening a device may do something
                raise OSError(EINVAL, "no regular file")
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

        return cls.of(path, open_file, machine)

    @classmethod
    def of(cls, path: str, open_file: Callable[[], int], machine: int | None = None) -> ElfImage:
        """Map the file whose fd ``open_file`` returns (closed here); ``path`` is for errors. Raises SymbolFileError."""
        try:
            fd = open_file()
        except (OSError, ValueError) as error:
            raise SymbolFileError(f"cannot open {path}: {getattr(error, 'strerror', error)}") from error
        try:
            stat = os.fstat(fd)
            data = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file
            raise SymbolFileError(f"cannot map {path}: {error}") from error
        finally:
            os.close(fd)
        try:
            return cls(data, path, file_key(stat), machine)
        except SymbolFileError as error:
            data.close()
            raise SymbolFileError(f"{path}: {error.what}") from error

    @cached_property
    def build_id(self) -> str | None:
        """The GNU build-id in hex, None if the file has none."""
        notes = (segment for segment in self.segments if segment.type == elf_header.PT_NOTE)
        ids = (elf_header.build_id_in(self.contents(segment.offset, segment.filesz)) for segment in notes)
        return next((build_id for build_id in ids if build_id is not None), None)

    @property
    def eh_frame_hdr(self) -> elf_header.Segment | None:
        """The PT_GNU_EH_FRAME segment (.eh_frame_hdr), None if the file has none."""
        return self.segment(elf_header.PT_GNU_EH_FRAME)

    @property
    def tls(self) -> elf_header.Segment | None:
        """The PT_TLS segment, None if the file has no thread-local storage."""
        return self.segment(elf_header.PT_TLS)

    def segment(self, kind: int) -> elf_header.Segment | None:
        """The first segment of type ``kind`` (PT_*)."""
        return next((segment for segment in self.segments if segment.type == kind), None)

    @cached_property
    def sections(self) -> Mapping[str, ElfSection]:
        """Sections by name (the first of each name); empty if there are none or they are damaged."""
        return {section.name: section for section in reversed(self.section_list)}

    @cached_property
    def section_list(self) -> Sequence[ElfSection]:
        """All sections by number; empty if there are none or they are damaged."""
        header = self.header
        size = max(header.shentsize, _SHDR.size)
        end = header.shoff + header.shnum * size
        if not header.shoff or header.shnum > _MAX_SECTIONS or header.shstrndx >= header.shnum or end > self.size:
            return []
        try:
            starts = range(header.shoff, end, size)
            rows = [_SHDR.unpack(self.data[start : start + _SHDR.size]) for start in starts]
        except SymbolFileError:
            return []
        strings = self.contents(rows[header.shstrndx][4], min(rows[header.shstrndx][5], 1 << 24))
        names = [strings[row[0] : row[0] + 256].partition(b"\0")[0].decode("utf-8", "replace") for row in rows]
        return [ElfSection(number, name, *row[1:8], *row[9:]) for number, (name, row) in enumerate(zip(names, rows))]

    def contents(self, offset: int, size: int) -> bytes:
        """The file's bytes at a file offset; fewer than ``size`` at the file's end, b"" if unknown."""
        if offset < 0 or size <= 0 or offset >= self.size:
            return b""
        try:
            return self.data[offset : offset + size]
        except SymbolFileError:
            return b""

    def read(self, vaddr: int, size: int) -> bytes:
        """Exactly ``size`` bytes of the file at ``vaddr``; b"" if the file does not have them all."""
        segment = self._stored_segment(vaddr, size)
        piece = self.contents(vaddr - segment.vaddr + segment.offset, size) if segment else b""
        return piece if len(piece) == size else b""

    def _stored_segment(self, vaddr: int, size: int = 1) -> elf_header.Segment | None:
        """The segment of which the file has all ``size`` bytes at ``vaddr``; None if there is none."""
        for segment in self.loads:
            if segment.vaddr <= vaddr and vaddr + size <= segment.vaddr + segment.filesz:
                return segment
        return None

    def pieces(self, vaddr: int, size: int, overlap: int) -> Iterator[tuple[int, bytes]]:
        """(address, bytes) of consecutive pieces of the contents at ``vaddr``, for reading hundreds of megabytes once.

        Each piece ends with the first ``overlap`` bytes of the next one. A piece's memory is released after its use.
        """
        for start in range(vaddr, vaddr + size, _PIECE):
            piece = self.read(start, min(_PIECE + overlap, vaddr + size - start))
            if not piece:
                return
            yield start, piece
            elf_header.release_memory(self.data, self.file_offset(start) or 0, len(piece))

    def file_offset(self, vaddr: int) -> int | None:
        """Offset in the file of the byte at ``vaddr``; None if it is not in the file."""
        segment = self._stored_segment(vaddr)
        return vaddr - segment.vaddr + segment.offset if segment else None

    def find(self, needle: bytes, vaddr: int, end: int, step: int = 1) -> int | None:
        """The first of the addresses ``vaddr``, ``vaddr`` + ``step``, … before ``end`` that has the bytes ``needle``;
        None if the segment of ``vaddr`` has none."""
        segment = self._stored_segment(vaddr)
        if not segment:
            return None
        bias = segment.offset - segment.vaddr
        start, stop = vaddr + bias, min(end, segment.vaddr + segment.filesz) + bias
        at = self.data.find(needle, start, stop)
        while at >= 0 and (at - start) % step:
            at = self.data.find(needle, at + 1, stop)
        return at - bias if at >= 0 else None

    def is_code(self, vaddr: int) -> bool:
        """True if an executable segment covers the address."""
        return any(
            segment.flags & elf_header.PF_X and segment.vaddr <= vaddr < segment.vaddr + segment.memsz
            for segment in self.loads
        )

    def is_read_only(self, vaddr: int, size: int) -> bool:
        """True if a segment that is not writable covers all these bytes."""
        return any(
            not segment.flags & elf_header.PF_W
            and segment.vaddr <= vaddr
            and vaddr + size <= segment.vaddr + segment.memsz
            for segment in self.loads
        )

    @property
    def span(self) -> tuple[int, int]:
        """(lowest address, end) of all PT_LOAD segments; (0, 0) without any."""
        starts = (segment.vaddr for segment in self.loads)
        ends = (segment.vaddr + segment.memsz for segment in self.loads)
        return min(starts, default=0), max(ends, default=0)

    @property
    def dynamic(self) -> dict[int, int]:
        """DT_* tag → value (the first of each tag) of the dynamic section, as it is in the file."""
        segment = self.segment(elf_header.PT_DYNAMIC)
        table: dict[int, int] = {}
        raw = self.contents(segment.offset, min(segment.filesz, _MAX_DYNAMIC * _DYN.size)) if segment else b""
        for tag, value in _DYN.iter_unpack(raw[: len(raw) // _DYN.size * _DYN.size]):
            if tag == 0:
                break
            table.setdefault(tag, value)
        return table


def build_id_of_file(path: str | os.PathLike[str]) -> str | None:
    """The GNU build-id of an ELF file in hexadecimal, None if it has none or cannot be read."""
    with suppress(SymbolFileError):
        return ElfImage.open(str(path)).build_id
    return None
