"""An ELF file seen through the target's memory: what is left when the file itself is gone or replaced.

The program headers, the dynamic section, .dynsym, .gnu.hash, .eh_frame_hdr and .eh_frame are all loaded; section
headers and .symtab are not. So exported names and unwinding work, local names do not.
"""

from __future__ import annotations

from typing import Protocol

from gdbext.engine.formats import elf
from gdbext.engine.process.memory import PAGE_SIZE, Memory
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

    def read(self, vaddr: int, size: int) -> bytes | None:
        """Exactly ``size`` bytes of memory that the file backs (relocated, and as the program left it)."""
        for segment in self.loads:
            if segment.vaddr <= vaddr and vaddr + size <= segment.vaddr + segment.filesz:
                return self._memory.try_read(self._base + vaddr, size)
        return None

    def find(self, needle: bytes, vaddr: int, end: int, step: int = 1) -> int | None:
        """Find as in a file, in what is loaded of it."""
        data = self.read(vaddr, end - vaddr) or b""
        at = data.find(needle)
        while at >= 0 and at % step:
            at = data.find(needle, at + 1)
        return vaddr + at if at >= 0 else None

    def contents(self, offset: int, size: int) -> bytes:
        """The bytes at a file offset, where a segment has loaded them; b"" elsewhere."""
        for segment in self.loads:
            if segment.offset <= offset < segment.offset + segment.filesz:
                size = min(size, segment.offset + segment.filesz - offset)
                return self.read(segment.vaddr + offset - segment.offset, size) or b""
        return b""

    @property
    def dynamic(self) -> dict[int, int]:
        """The dynamic section with the file's own addresses, as it is in a file."""
        low, high = (self._base + limit for limit in self.span)
        return {
            tag: value - self._base if tag in _ADDRESS_TAGS and self._base and low <= value < high else value
            for tag, value in super().dynamic.items()
        }

    def is_useful(self) -> bool:
        """True when unwind tables or the names' hash table are there (cores leave out most pages of files)."""
        header = self.eh_frame_hdr
        places = [header.vaddr] if header is not None else []
        places.append(self.dynamic.get(elf.DT_GNU_HASH, -1))
        return any(self.read(place, 16) is not None for place in places)


class Mapped(Protocol):
    """A file that is mapped: where its first byte is, and its load bias."""

    start: int
    path: str

    @property
    def base(self) -> int:
        """The load bias: runtime address minus vaddr."""


def image_in_memory(module: Mapped, memory: Memory) -> MemoryImage | None:
    """The image of a module in memory, None where that is not an ELF file or cannot be read."""
    try:
        return MemoryImage(memory, module.start, module.base, module.path)
    except (SymbolFileError, MemoryFault):
        return None
