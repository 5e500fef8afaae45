"""An ELF file seen through the target's memory, and whether a file on disk is the same one.

The program headers, the dynamic section, .dynsym, .gnu.hash, .eh_frame_hdr and .eh_frame are all loaded; section
headers and .symtab are not. So exported names and unwinding work without the file, local names do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from gdbext.engine.formats import elf
from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.formats.elf_header import EHDR, PF_W, PT_LOAD, MappedElf, Segment
from gdbext.engine.process.memory import PAGE_SIZE, Memory
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.errors import MemoryFault, SymbolFileError

_ADDRESS_TAGS = frozenset(
    (elf.DT_HASH, elf.DT_STRTAB, elf.DT_SYMTAB, elf.DT_GNU_HASH, elf.DT_VERSYM, elf.DT_RELA, elf.DT_JMPREL)
)
"""The tags used here whose values are addresses: ld.so adds the load bias to them in place (glibc
``elf/get-dynamic-info.h``; to DT_VERSYM, too)."""


class MemoryImage(elf.ElfImage):
    """The part of a file that the target has mapped, with the interface of the file.

    ``data`` is the first page only; everything else goes through ``read`` and ``contents``.
    """

    from_memory = True

    def __init__(self, memory: Memory, start: int, base: int, path: str) -> None:
        """``start`` is the ELF header's address, ``base`` the load bias. Raises SymbolFileError, MemoryFault."""
        self._memory = memory
        self._base = base
        super().__init__(memory.read(start, PAGE_SIZE), path, machine=memory.architecture.elf_machine)

    def read(self, vaddr: int, size: int) -> bytes:
        """Exactly ``size`` bytes of memory that the file backs (relocated, and as the program left it); else b""."""
        for segment in self.loads:
            if segment.vaddr <= vaddr and vaddr + size <= segment.vaddr + segment.filesz:
                return self._memory.try_read(self._base + vaddr, size)
        return b""

    def find(self, needle: bytes, vaddr: int, end: int, step: int = 1) -> int | None:
        data = self.read(vaddr, end - vaddr)
        at = data.find(needle)
        while at >= 0 and at % step:
            at = data.find(needle, at + 1)
        return vaddr + at if at >= 0 else None

    def contents(self, offset: int, size: int) -> bytes:
        """The bytes at a file offset if a segment has loaded them, else b""."""
        for segment in self.loads:
            if segment.offset <= offset < segment.offset + segment.filesz:
                size = min(size, segment.offset + segment.filesz - offset)
                return self.read(segment.vaddr + offset - segment.offset, size) or b""
        return b""

    @property
    def dynamic(self) -> dict[int, int]:
        """The dynamic section with the file's own addresses."""
        low, high = (self._base + limit for limit in self.span)
        return {
            tag: value - self._base if tag in _ADDRESS_TAGS and self._base and low <= value < high else value
            for tag, value in super().dynamic.items()
        }

    def is_useful(self) -> bool:
        """True if unwind tables or the names' hash table are readable (cores leave out most pages of files)."""
        header = self.eh_frame_hdr
        tables = (header.vaddr if header else -1, self.dynamic.get(elf.DT_GNU_HASH, -1))
        return any(self.read(table, 16) for table in tables)


class Mapped(Protocol):
    """A mapped file."""

    start: int
    path: str

    @property
    def base(self) -> int:
        """The load bias: runtime address minus vaddr."""


def image_in_memory(module: Mapped, memory: Memory) -> MemoryImage | None:
    """The image of a module in memory, None if that is no ELF file or cannot be read."""
    try:
        return MemoryImage(memory, module.start, module.base, module.path)
    except (SymbolFileError, MemoryFault):
        return None


class FileIdentity:
    """One file's mappings, lowest first; its headers and build-id are read from memory on demand."""

    def __init__(self, memory: Memory, mappings: Sequence[MemoryMapping]) -> None:
        self._memory = memory
        self._mappings = mappings

    @cached_property
    def _mapped(self) -> MappedElf:
        first = self._mappings[0]
        start = first.start if first.offset == 0 else -1

        def read(offset: int, size: int) -> bytes:
            return self._memory.try_read(start + offset, size) if start >= 0 else b""

        return MappedElf(read, self._memory.architecture.elf_machine)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The program headers in memory; () if the first page cannot be read or is no ELF header."""
        return self._mapped.segments

    @cached_property
    def build_id(self) -> str | None:
        """The GNU build-id (hex) in memory, None if it cannot be read or there is none."""
        return self._mapped.build_id

    def bias(self, segments: Sequence[Segment]) -> int:
        """Runtime address minus vaddr, from the first mapping that a PT_LOAD of ``segments`` explains."""
        for mapping in self._mappings:
            for segment in segments:
                first = _page(segment.offset)
                if segment.type == PT_LOAD and first <= mapping.offset < segment.offset + segment.filesz:
                    return mapping.start - (_page(segment.vaddr) + mapping.offset - first)
        return self._mappings[0].start - self._mappings[0].offset

    def contradiction(self, image: ElfImage) -> str | None:
        """The reason why ``image`` cannot be the file in memory; None if there is none.

        Equal build-ids are proof. Without them everything possible is compared: the ELF header, the program headers,
        how the segments are mapped, and pages spread over the read-only segments.
        """
        ours, theirs = self.build_id, image.build_id
        if ours and theirs:
            return None if ours == theirs else f"its build-id is {theirs}, that in memory is {ours}"
        if self.segments and (self._mapped.header != image.contents(0, EHDR.size) or self.segments != image.segments):
            return "its ELF headers differ"
        if not self._fits(image):
            return "its segments do not fit the mappings"
        bias = self.bias(image.segments)
        for segment in image.loads:
            if segment.flags & PF_W:  # relocations change it
                continue
            size = min(PAGE_SIZE, segment.filesz)
            step = max(PAGE_SIZE, segment.filesz // 64)
            for position in range(0, segment.filesz - size + 1, step):
                try:  # not through the page cache: these pages are not needed again
                    data = self._memory.target.memory.sample(bias + segment.vaddr + position, size)
                except MemoryFault:
                    continue
                if data and data != image.read(segment.vaddr + position, size):
                    return f"its contents differ at {segment.vaddr + position:#x}"
        return None

    def _fits(self, image: ElfImage) -> bool:
        """True if PT_LOADs of the file explain the first mapping and all executable ones, at one load bias."""
        bias = self.bias(image.segments)
        return all(
            any(
                mapping.start - bias == _page(load.vaddr) + mapping.offset - _page(load.offset)
                and _page(load.offset) <= mapping.offset < load.offset + load.filesz
                for load in image.loads
            )
            for number, mapping in enumerate(self._mappings)
            if number == 0 or "x" in mapping.permissions
        )


def _page(value: int) -> int:
    return value - value % PAGE_SIZE
