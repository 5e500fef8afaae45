"""ELF headers and notes, of a file or of its mapping in memory, and the auxiliary vector (System V gABI, elf.h).

Every number in a file is checked against the file's size before use.
"""

from __future__ import annotations

import mmap
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gdbext.errors import SymbolFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes]
    """(offset or address, size) → exactly ``size`` bytes; b"" if there are not as many."""


class Data(Protocol):
    """The contents of a file: mapped, read from the target's memory, or from a recording.

    Slices and ``find`` only, so that a recorder can stand in for it. Bytes that a recording lacks raise
    SymbolFileError.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> bytes: ...

    def find(self, needle: bytes, start: int, end: int, /) -> int:
        """Find bytes, as ``bytes.find`` does."""


def release_memory(data: Data, offset: int, size: int) -> None:
    """Drop a part of a mapped file, which will hardly be read again, from our memory; another read brings it back."""
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_DONTNEED, offset & -mmap.PAGESIZE, size)


ET_CORE = 4
PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_TLS, PT_GNU_EH_FRAME = 1, 2, 4, 7, 0x6474E550
PF_X, PF_W, PF_R = 1, 2, 4
NT_GNU_BUILD_ID = 3
AT_ENTRY, AT_RANDOM, AT_SYSINFO_EHDR = 9, 25, 33
"""Entries of the auxiliary vector: the program's start; 16 random bytes on the first stack; the vdso's ELF header."""
PN_XNUM = 0xFFFF  # e_phnum if there are more headers than fit; sh_info of section 0 has their number

EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
"""Elf64_Ehdr: ident, type, machine, version, entry, phoff, shoff, flags, ehsize, phentsize, phnum, shentsize,
shnum, shstrndx."""
PHDR = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr: type, flags, offset, vaddr, paddr, filesz, memsz, align
_NHDR = struct.Struct("<III")
_IDENTITY_SIZE = 20
_AT_ONCE = 1024  # program headers that are read together
_MAX_SEGMENTS = 256  # most segments of a program or library; a core has one for each mapping


class Identity(NamedTuple):
    """The facts in the first 20 bytes of a file of any class and byte order."""

    bits: int
    little: bool
    type: int
    machine: int

    @property
    def is_ours(self) -> bool:
        """True for 64 bits, little-endian: the only kind that gdbext reads."""
        return self.bits == 64 and self.little


class Header(NamedTuple):
    """The fields of the ELF header that are used (Elf64_Ehdr)."""

    type: int
    machine: int
    entry: int
    phoff: int
    shoff: int
    phentsize: int
    phnum: int
    shentsize: int
    shnum: int
    shstrndx: int


class Segment(NamedTuple):
    """One program header (Elf64_Phdr); sizes in bytes."""

    type: int
    flags: int
    offset: int
    vaddr: int
    filesz: int
    memsz: int


class Note(NamedTuple):
    """One note: its owner without the final NUL, its type (NT_*), offset and size of its descriptor."""

    owner: bytes
    type: int
    offset: int
    size: int


def identify(start: bytes) -> Identity | None:
    """The identity of an ELF file, None for any other file."""
    if len(start) < _IDENTITY_SIZE or start[:4] != b"\x7fELF":
        return None
    little = start[5] != 2
    kind, machine = struct.unpack_from("<HH" if little else ">HH", start, 16)
    return Identity(64 if start[4] == 2 else 32, little, kind, machine)


def parse_header(data: Data, machine: int | None = None) -> Header:
    """The ELF header at the start of ``data``. Raises SymbolFileError if there is none, or for another machine."""
    identity = identify(data[:_IDENTITY_SIZE])
    if len(data) < EHDR.size or not identity or not identity.is_ours:
        raise SymbolFileError("not a 64-bit little-endian ELF file")
    if machine is not None and identity.machine != machine:
        raise SymbolFileError(f"ELF file of another machine (e_machine {identity.machine})")
    _, kind, _, _, entry, phoff, shoff, _, _, *entries = EHDR.unpack(data[: EHDR.size])
    return Header(kind, identity.machine, entry, phoff, shoff, *entries)


def parse_segments(data: Data, header: Header) -> tuple[Segment, ...]:
    """All program headers of a program or library. Raises SymbolFileError if they do not lie inside ``data``."""
    if header.phnum > _MAX_SEGMENTS or header.phoff + header.phnum * _entry_size(header) > len(data):
        raise SymbolFileError(f"program headers lie outside the file ({header.phnum} at {header.phoff:#x})")
    return tuple(segments(data, header, header.phnum))


def segments(data: Data, header: Header, count: int) -> Iterator[Segment]:
    """The first ``count`` program headers, which must lie inside ``data``."""
    size, end = _entry_size(header), header.phoff + count * _entry_size(header)
    entry = PHDR if size == PHDR.size else struct.Struct(f"{PHDR.format}{size - PHDR.size}x")
    for start in range(header.phoff, end, size * _AT_ONCE):
        piece = data[start : min(start + size * _AT_ONCE, end)]
        for kind, flags, offset, vaddr, _, filesz, memsz, _ in entry.iter_unpack(piece):
            yield Segment(kind, flags, offset, vaddr, filesz, memsz)


def _entry_size(header: Header) -> int:
    return max(header.phentsize, PHDR.size)


def notes(data: Data, start: int, end: int) -> Iterator[Note]:
    """The notes in ``data`` from ``start`` to ``end``, up to the first truncated one."""
    position = start
    while position + _NHDR.size <= end:
        name_size, size, kind = _NHDR.unpack(data[position : position + _NHDR.size])
        name_at = position + _NHDR.size
        at = name_at + (name_size + 3 & ~3)
        if at + size > end:
            return
        yield Note(data[name_at : name_at + name_size].rstrip(b"\0"), kind, at, size)
        position = at + (size + 3 & ~3)


def build_id_in(data: bytes) -> str | None:
    """The GNU build-id (hex) among the notes in ``data``, None if there is none."""
    for note in notes(data, 0, len(data)):
        if note.owner == b"GNU" and note.type == NT_GNU_BUILD_ID and note.size:
            return data[note.offset : note.offset + note.size].hex()
    return None


_MAX_HEADERS = _MAX_NOTES = 1 << 16  # bytes of program headers, and of a note segment, that are read


class MappedElf:
    """The headers of an ELF file that the target has mapped; empty if there is no such file."""

    def __init__(self, read: Read, machine: int | None = None) -> None:
        """``read`` takes addresses relative to the file's first byte in memory; ``machine``: the only accepted
        e_machine, None for any."""
        self._read = read
        self.header = b""
        self.segments: tuple[Segment, ...] = ()
        start = read(0, EHDR.size)
        with suppress(SymbolFileError):
            header = parse_header(start, machine)
            size = header.phoff + header.phnum * _entry_size(header)
            headers = read(0, size) if size <= _MAX_HEADERS else b""
            if headers:
                self.segments = parse_segments(headers, header)
                self.header = start

    @property
    def build_id(self) -> str | None:
        """The GNU build-id (hex), None if there is none or it is not mapped."""
        base = min((segment.vaddr for segment in self.segments if segment.type == PT_LOAD), default=0)
        for segment in self.segments:
            if segment.type == PT_NOTE and segment.vaddr >= base:
                build_id = build_id_in(self._read(segment.vaddr - base, min(segment.filesz, _MAX_NOTES)))
                if build_id:
                    return build_id
        return None

    def permissions_at(self, offset: int, page_size: int) -> str:
        """The permissions of a mapping of that file offset ("r-xp"), "" if no PT_LOAD covers it."""
        for segment in self.segments:
            if segment.type == PT_LOAD and segment.offset & -page_size <= offset < segment.offset + segment.filesz:
                return permission_text(segment.flags)
        return ""


def permission_text(flags: int) -> str:
    """p_flags as in /proc/PID/maps, for a private mapping, as every PT_LOAD is: "r-xp"."""
    return "".join(letter if flags & bit else "-" for letter, bit in (("r", PF_R), ("w", PF_W), ("x", PF_X))) + "p"


def parse_auxv(data: bytes) -> dict[int, int]:
    """AT_* → value of an auxiliary vector (getauxval(3)), up to AT_NULL or the end of ``data``."""
    entries: dict[int, int] = {}
    for key, value in struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]):
        if key == 0:
            break
        entries[key] = value
    return entries
