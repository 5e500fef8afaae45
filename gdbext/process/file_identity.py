"""What memory says about a mapped ELF file, and whether a file on disk can be that one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from gdbext.errors import MemoryFault
from gdbext.formats.elf.elf import ElfImage
from gdbext.formats.elf.elf_header import EHDR, PF_W, PT_LOAD, Segment
from gdbext.formats.elf.mapped_elf import MappedElf
from gdbext.process.memory import PAGE_SIZE, Memory
from gdbext.targets.base import MemoryMapping

_SAMPLED_PAGES = 64
"""Pages of each segment compared between a file and memory where no build-id tells them apart."""


class FileIdentity:
    """One file's mappings, lowest first: its headers and build-id are read from memory when asked for."""

    def __init__(self, memory: Memory, mappings: Sequence[MemoryMapping]) -> None:
        self._memory = memory
        self._mappings = mappings

    @cached_property
    def _mapped(self) -> MappedElf:
        first = self._mappings[0]
        start = first.start if first.offset == 0 else -1

        def read(offset: int, size: int) -> bytes | None:
            return self._memory.try_read(start + offset, size) if start >= 0 else None

        return MappedElf(read, self._memory.architecture.elf_machine)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The program headers in memory; () where the first page cannot be read or is not an ELF header."""
        return self._mapped.segments

    @cached_property
    def build_id(self) -> str | None:
        """The GNU build-id (hex) in memory, None where it cannot be read or there is none."""
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
        """Why ``image`` cannot be the file in memory; None when nothing speaks against it.

        Equal build-ids settle it. Without them everything that can be compared is: the ELF header, the program
        headers, how the segments lie, and pages spread over the read-only segments.
        """
        ours, theirs = self.build_id, image.build_id
        if ours is not None and theirs is not None:
            return None if ours == theirs else f"its build-id is {theirs}, that in memory is {ours}"
        if self.segments and (self._mapped.header != image.contents(0, EHDR.size) or self.segments != image.segments):
            return "its ELF headers differ"
        if not self._fits(image):
            return "its segments do not fit the mappings"
        return self._different_contents(image)

    def _fits(self, image: ElfImage) -> bool:
        """True when PT_LOADs of the file explain the first mapping and all executable ones, at one load bias."""
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

    def _different_contents(self, image: ElfImage) -> str | None:
        """Compare pages that no relocation touches."""
        bias = self.bias(image.segments)
        for segment in image.loads:
            if segment.flags & PF_W:
                continue
            size = min(PAGE_SIZE, segment.filesz)
            step = max(PAGE_SIZE, segment.filesz // _SAMPLED_PAGES)
            for position in range(0, segment.filesz - size + 1, step):
                found = self._sample(bias + segment.vaddr + position, size)
                if found is not None and found != image.read(segment.vaddr + position, size):
                    return f"its contents differ at {segment.vaddr + position:#x}"
        return None

    def _sample(self, address: int, size: int) -> bytes | None:
        """Past the page cache: nobody wants these pages again."""
        try:
            return self._memory.target.sample(address, size)
        except MemoryFault:
            return None


def _page(value: int) -> int:
    return value - value % PAGE_SIZE
