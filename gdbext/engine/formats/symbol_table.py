"""The symbol tables inside one ELF file, read in place: .symtab, .dynsym, the compressed .gnu_debugdata.

Elf64_Sym, the hash functions and tables are those of the System V gABI and of glibc's ``elf/elf.h`` and
``sysdeps/generic/dl-hash.h`` (DT_GNU_HASH).
"""

from __future__ import annotations

import struct
from array import array
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats import elf
from gdbext.engine.formats.elf_header import release_memory
from gdbext.errors import SymbolFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from gdbext.engine.formats.elf_header import Data

STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_COMMON, STT_TLS, STT_GNU_IFUNC = 0, 1, 2, 5, 6, 10
STB_LOCAL, STB_WEAK = 0, 2
SYMBOL_SIZE = 24
MAX_SYMBOLS = 1 << 23
"""No table has more (libtorch_cuda has 1.5 million); it bounds what a damaged header can make us do."""

_SYM = struct.Struct("<IBBHQQ")
_NAMED_TYPES = frozenset((STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_COMMON, STT_TLS, STT_GNU_IFUNC))
_SHN_UNDEF, _SHN_LORESERVE, _SHN_XINDEX = 0, 0xFF00, 0xFFFF
_VERSION_HIDDEN = 0x8000
_NAME_LIMIT = 1 << 16
_CHAIN_LIMIT = 1 << 16
_PIECE = 1 << 23  # bytes of a string table that are searched at once
_FEW = 16
"""Names that are searched for one by one among the entries, which takes a tenth of the time of testing each entry."""
_DEBUGDATA_LIMIT = 1 << 27
_STRINGS_LIMIT = 1 << 28  # bytes of a string table that are read; a sparse file may claim any number
_STARTS_LIMIT = 1 << 22
"""Most offsets at which names with a searched text may start: libtorch_cpu has 430,000 for "redispatch"."""


class Symbol(NamedTuple):
    """One symbol of an ELF file; ``name`` is mangled, ``type`` STT_*, ``binding`` STB_*, ``size`` in bytes. ``vaddr``
    is the file's own address (for STT_TLS the offset in the module's TLS block)."""

    name: str
    vaddr: int
    size: int
    type: int
    binding: int

    @property
    def is_function(self) -> bool:
        """True for functions, indirect functions (STT_GNU_IFUNC) and untyped assembler labels."""
        return self.type in (STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE)


class SymbolTable:
    """``count`` Elf64_Sym at file offset ``offset`` of ``data``, their names at ``strings``."""

    def __init__(self, data: Data, offset: int, size: int, strings: int, strings_size: int, locals_: int) -> None:
        """``offset`` and ``strings`` are file offsets, the sizes are in bytes; ``locals_`` is the section's sh_info.
        Raises SymbolFileError if the table lies outside the file."""
        total = len(data)
        if offset > total or strings >= total:
            raise SymbolFileError(f"symbol table lies outside the file ({offset:#x}, {strings:#x})")
        self.data = data
        self.offset = offset
        self.count = min(size, total - offset) // SYMBOL_SIZE
        if self.count > MAX_SYMBOLS:
            raise SymbolFileError(f"symbol table has {self.count} entries")
        self.strings = strings
        self.strings_end = min(strings + min(strings_size, _STRINGS_LIMIT), total)
        self.locals = min(locals_, self.count)  # number of entries before the first that is not STB_LOCAL (sh_info)
        self.is_dynamic = False  # True for the table .dynsym
        self._offsets: array[int] | None = None

    def mentions(self, beginning: bytes) -> bool:
        """True if a name in the string table starts with ``beginning``, even of an undefined symbol."""
        return self.data.find(b"\0" + beginning, self.strings, self.strings_end) >= 0

    def entries(self) -> bytes:
        """All entries, each of SYMBOL_SIZE bytes."""
        return self.data[self.offset : self.offset + self.count * SYMBOL_SIZE]

    def raw(self, number: int) -> tuple[int, int, int, int, int, int]:
        """st_name, st_info, st_other, st_shndx, st_value, st_size of one entry (0 ≤ number < count)."""
        at = self.offset + SYMBOL_SIZE * number
        entry: tuple[int, int, int, int, int, int] = _SYM.unpack(self.data[at : at + SYMBOL_SIZE])
        return entry

    def symbol(self, number: int) -> Symbol | None:
        """The entry as a symbol; None if it defines none (undefined, absolute, section, file, no name)."""
        if number >= self.count:
            return None
        name, info, _, section, value, size = self.raw(number)
        kind = info & 15
        is_defined = _SHN_UNDEF < section < _SHN_LORESERVE or section == _SHN_XINDEX
        if not is_defined or kind not in _NAMED_TYPES:
            return None
        text = self.name_at(name).partition(b"@")[0]  # .symtab appends the version: pow@@GLIBC_2.29
        return Symbol(text.decode("utf-8", "surrogateescape"), value, size, kind, info >> 4) if text else None

    def name_at(self, position: int) -> bytes:
        """The string at that offset of the string table, b"" if there is none."""
        start, end = self.strings + position, self.strings_end
        name, nul, _ = self.data[start : min(start + 256, end)].partition(b"\0")
        if not nul and start < end:
            name = self.data[start : min(start + _NAME_LIMIT, end)].partition(b"\0")[0]
        return name

    def is_named(self, number: int, name: bytes) -> bool:
        """True if entry ``number`` has exactly that name."""
        if number >= self.count:
            return False
        start = self.strings + self.raw(number)[0]
        end = start + len(name)
        return end < self.strings_end and self.data[start : end + 1] == name + b"\0"

    def numbers_named(self, name: bytes) -> list[int]:
        """Numbers of the entries that have exactly that name, ascending. Reads every name."""
        return self._numbers_of(self._name_starts(lambda text: _positions(text, name + b"\0")))

    def numbers_with(self, needles: Sequence[bytes]) -> Iterator[int]:
        """Numbers of the entries whose names contain all needles, ascending. Reads every name."""
        longest = max(needles, key=len, default=b"")
        for number in self._numbers_of(self._name_starts(lambda text: _starts_of_names_with(text, longest))):
            name = self.name_at(self.raw(number)[0])
            if name and all(needle in name for needle in needles):
                yield number

    def _name_starts(self, find: Callable[[bytes], Iterator[int]]) -> set[int]:
        """Offsets in the string table of names, by ``find``: from a piece of the table, which has whole names, to the
        offsets in that piece. The memory of searched pieces is released. Raises SymbolFileError for too many."""
        starts: set[int] = set()
        at = self.strings
        while at < self.strings_end:
            piece = self.data[at : min(at + _PIECE, self.strings_end)]
            piece = piece[: piece.rfind(b"\0") + 1] or piece
            offset = at - self.strings
            starts.update(offset + start for start in islice(find(piece), _STARTS_LIMIT + 1))
            if len(starts) > _STARTS_LIMIT:
                raise SymbolFileError("the string table has too many names of one kind")
            release_memory(self.data, at, len(piece))
            at += len(piece)
        return starts

    def _numbers_of(self, starts: Collection[int]) -> list[int]:
        """Numbers of the entries whose names start at one of these offsets of the string table, ascending."""
        if not starts:
            return []
        if self._offsets is None:
            self._offsets = array("I", self.entries())[:: SYMBOL_SIZE // 4]
        if len(starts) > _FEW:
            return [number for number, start in enumerate(self._offsets) if start in starts]
        raw, width = self._offsets.tobytes(), self._offsets.itemsize
        positions = chain.from_iterable(_positions(raw, start.to_bytes(width, "little")) for start in starts)
        return sorted(at // width for at in positions if not at % width)


def _positions(text: bytes, needle: bytes) -> Iterator[int]:
    """All offsets of ``needle`` in ``text``."""
    at = text.find(needle)
    while at >= 0:
        yield at
        at = text.find(needle, at + 1)


def _starts_of_names_with(text: bytes, needle: bytes) -> Iterator[int]:
    """Offsets at which names with the needle may start: linkers let a name be the tail of a longer one, so any byte
    before the needle is possible."""
    searched = 0
    for at in _positions(text, needle):
        begin = text.rfind(0, searched, at) + 1 or searched  # nothing is searched twice
        yield from range(max(begin, at - _NAME_LIMIT), at + 1)
        searched = at + 1


def section_table(image: elf.ElfImage, kind: int) -> SymbolTable | None:
    """The table in the first section of type ``kind`` (SHT_SYMTAB, SHT_DYNSYM), None if there is none. Raises
    SymbolFileError for one that lies outside the file."""
    sections = image.section_list
    for section in sections:
        if section.type == kind and section.size >= SYMBOL_SIZE and section.link < len(sections):
            strings = sections[section.link]
            if strings.type == elf.SHT_NOBITS:  # a .debug file carries empty shells of these sections
                return None
            return SymbolTable(image.data, section.offset, section.size, strings.offset, strings.size, section.info)
    return None


def dynamic_table(image: elf.ElfImage) -> SymbolTable | None:
    """.dynsym by its section, or, in a file without sections, by the dynamic segment and its hash table."""
    table = section_table(image, elf.SHT_DYNSYM)
    if not table:
        dynamic = image.dynamic
        header = image.read(dynamic[elf.DT_HASH], 8) if elf.DT_HASH in dynamic else b""
        if header:
            count = min(int.from_bytes(header[4:], "little"), MAX_SYMBOLS)  # nchain
        else:
            hashes = GnuHash.of(image)
            count = hashes.count() if hashes else 0
        symbols = image.read(dynamic.get(elf.DT_SYMTAB, -1), count * SYMBOL_SIZE)
        strings = image.read(dynamic.get(elf.DT_STRTAB, -1), min(dynamic.get(elf.DT_STRSZ, 0), _STRINGS_LIMIT))
        if not symbols or not strings:
            return None
        table = SymbolTable(symbols + strings, 0, len(symbols), len(symbols), len(strings), 0)
    table.is_dynamic = True
    return table


def mini_debug_table(image: elf.ElfImage) -> SymbolTable | None:
    """The local functions that Fedora and RHEL keep in .gnu_debugdata (an xz-compressed ELF file); None without."""
    section = image.sections.get(".gnu_debugdata")
    if not section:
        return None
    try:
        import lzma  # Python may be built without it
    except ImportError:
        return None
    packed = image.contents(section.offset, section.size)
    try:
        data = lzma.LZMADecompressor(memlimit=_DEBUGDATA_LIMIT).decompress(packed, _DEBUGDATA_LIMIT)
        return section_table(elf.ElfImage(data, image.path), elf.SHT_SYMTAB)
    except (lzma.LZMAError, EOFError, MemoryError, SymbolFileError):
        return None


class GnuHash:
    """DT_GNU_HASH, the file's own hash table of exported symbols."""

    def __init__(self, image: elf.ElfImage, vaddr: int) -> None:
        """Read the header of the table at ``vaddr``. Raises SymbolFileError if there is none."""
        header = image.read(vaddr, 16)
        if not header:
            raise SymbolFileError("the hash table lies outside the file")
        self._image = image
        self._versions = image.dynamic.get(elf.DT_VERSYM)
        numbers: tuple[int, int, int, int] = struct.unpack("<4I", header)
        self.buckets, self.first, self._bloom_words, self._bloom_shift = numbers
        if not self.buckets or not self._bloom_words:
            raise SymbolFileError("the hash table is empty")
        self._bloom = vaddr + 16
        self._bucket = self._bloom + 8 * self._bloom_words
        self._chain = self._bucket + 4 * self.buckets

    @classmethod
    def of(cls, image: elf.ElfImage) -> GnuHash | None:
        """The image's table, None if it has none that can be read."""
        vaddr = image.dynamic.get(elf.DT_GNU_HASH)
        try:
            return None if vaddr is None else cls(image, vaddr)
        except SymbolFileError:
            return None

    def is_default(self, number: int) -> bool:
        """False if entry ``number`` is an old version of a symbol (pthread_cond_wait@GLIBC_2.2.5)."""
        if self._versions is None:
            return True
        piece = self._image.read(self._versions + 2 * number, 2)
        return not int.from_bytes(piece, "little") & _VERSION_HIDDEN

    def _word(self, vaddr: int) -> int:
        return int.from_bytes(self._image.read(vaddr, 4), "little")

    def candidates(self, name: bytes) -> Iterator[int]:
        """Numbers of .dynsym entries whose 32-bit hash is that of ``name``."""
        value = 5381
        for byte in name:  # glibc's dl_new_hash
            value = (value * 33 + byte) & 0xFFFFFFFF
        word = self._image.read(self._bloom + 8 * (value // 64 % self._bloom_words), 8)
        bits = int.from_bytes(word, "little")
        if not (bits >> (value % 64)) & (bits >> ((value >> (self._bloom_shift & 31)) % 64)) & 1:
            return
        number = self._word(self._bucket + 4 * (value % self.buckets))
        if number < self.first:
            return
        for step in range(_CHAIN_LIMIT):
            entry = self._word(self._chain + 4 * (number + step - self.first))
            if entry | 1 == value | 1:
                yield number + step
            if entry & 1:
                return

    def count(self) -> int:
        """Number of .dynsym entries, from the end of the longest chain."""
        size = min(4 * self.buckets, 4 * MAX_SYMBOLS)
        raw = self._image.read(self._bucket, size)
        if not raw:
            return 0
        last = int(max(struct.unpack(f"<{size // 4}I", raw)))
        if last < self.first:
            return self.first
        for step in range(_CHAIN_LIMIT):
            if self._word(self._chain + 4 * (last + step - self.first)) & 1:
                return min(last + step + 1, MAX_SYMBOLS)
        return 0
