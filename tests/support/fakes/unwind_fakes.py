"""A target made of bytes, for unwinder tests: ELF files placed in it as the kernel would map them, a stack, code."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.engine.unwind import Unwinder
from gdbext.engine.unwind.frame_steps import NativeFrame
from gdbext.errors import MemoryFault
from support.fakes import fake_target

PAGE = 4096
STACK = 0x7FFC_0000_0000
STACK_SIZE = 0x10000


class Region(NamedTuple):
    start: int
    data: bytes
    mapping: MemoryMapping


class FakeTarget(fake_target.FakeTarget):
    """Memory from regions; ``gone`` are paths whose files cannot be opened."""

    pid = 1

    def __init__(self, gone: Sequence[str] = ()) -> None:
        super().__init__({}, kind="core")
        self.regions: list[Region] = []  # type: ignore[assignment]
        self.gone = set(gone)
        self.origin.local_path = self._local_path  # type: ignore[method-assign]

    def _local_path(self, path: str) -> str:
        return "/nowhere" + path if path in self.gone else path

    def add(self, start: int, data: bytes, permissions: str, path: str = "", offset: int = 0) -> None:
        padded = data + bytes(-len(data) % PAGE)
        mapping = MemoryMapping(start, start + len(padded), offset, path, permissions)
        self.regions.append(Region(start, padded, mapping))

    def add_elf(self, path: str, base: int) -> ElfImage:
        image = ElfImage.open(path)
        for segment in image.loads:
            lead = segment.vaddr % PAGE
            contents = image.contents(segment.offset - lead, segment.filesz + lead)
            permissions = "r" + ("w" if segment.flags & 2 else "-") + ("x" if segment.flags & 1 else "-") + "p"
            self.add(base + segment.vaddr - lead, contents, permissions, path, segment.offset - lead)
        return image

    def read(self, address: int, size: int) -> bytes:
        for region in self.regions:
            at = address - region.start
            if at >= 0 and at + size <= len(region.data):
                return region.data[at : at + size]
        raise MemoryFault(address, size)

    def maps(self) -> Sequence[MemoryMapping]:
        return sorted((region.mapping for region in self.regions), key=lambda mapping: mapping.start)


class FakeStack:
    """Words on a stack that ends at the top of its mapping; everything else is zero."""

    def __init__(self) -> None:
        self.data = bytearray(STACK_SIZE)

    def put(self, address: int, *words: int) -> None:
        struct.pack_into(f"<{len(words)}Q", self.data, address - STACK, *words)

    def add_to(self, target: FakeTarget) -> None:
        target.add(STACK, bytes(self.data), "rw-p", "[stack]")


def unwinder(target: FakeTarget) -> Unwinder:
    memory = Memory(target)
    return Unwinder(memory, ModuleTable(target, memory))


def walk(target: FakeTarget, registers: Mapping[str, int]) -> tuple[list[NativeFrame], str]:
    one = unwinder(target)
    frames = list(one.frames(registers, 1000))
    return frames, one.stopped
