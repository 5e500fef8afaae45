"""The slots of a library that the loader fills with a function's address."""

from __future__ import annotations

import struct

from gdbext.engine.formats.elf import ElfImage
from gdbext.engine.process.code_reader import imported_slots
from support.fakes.elf_maker import Entry, make_elf

JUMPS, OTHERS = 0x9000, 0xA000
RELATIVE, GLOBAL, JUMP_SLOT = 8, 6, 7


class Linked(ElfImage):
    """With two tables of relocations."""

    def __init__(self, jumps: list[tuple[int, int, int]], others: list[tuple[int, int, int]], relative: int) -> None:
        names = [Entry("wanted", 0x1000), Entry("wanted_not", 0x1010), Entry("other", 0, section=0)]
        super().__init__(make_elf(exported=names), "linked.so")
        self._tables = {JUMPS: _rela(jumps), OTHERS: _rela(others)}
        self._relative = relative

    @property
    def dynamic(self) -> dict[int, int]:
        sizes = {2: len(self._tables[JUMPS]), 8: len(self._tables[OTHERS])}
        return {23: JUMPS, 7: OTHERS, 0x6FFFFFF9: self._relative, **sizes}

    def read(self, vaddr: int, size: int) -> bytes | None:
        for start, table in self._tables.items():
            if start <= vaddr and vaddr + size <= start + len(table):
                return table[vaddr - start : vaddr - start + size]
        return super().read(vaddr, size)


def _rela(entries: list[tuple[int, int, int]]) -> bytes:
    return b"".join(struct.pack("<QQq", slot, number << 32 | kind, 0) for slot, number, kind in entries)


def test_slots_of_a_name_in_both_tables() -> None:
    image = Linked([(0x3000, 1, JUMP_SLOT), (0x3008, 2, JUMP_SLOT)], [(0x3010, 0, RELATIVE), (0x3018, 1, GLOBAL)], 1)
    assert imported_slots(image, ["wanted"]) == {0x3000, 0x3018}
    assert imported_slots(image, ["wanted", "other"]) == {0x3000, 0x3018}
    assert imported_slots(image, ["want"]) == set()


def test_a_name_that_is_not_defined_there() -> None:
    image = Linked([(0x3000, 3, JUMP_SLOT)], [], 0)
    assert imported_slots(image, ["other"]) == {0x3000}


def test_tables_that_are_not_there() -> None:
    image = Linked([], [(0x3010, 0, RELATIVE)], 5)
    assert imported_slots(image, ["wanted"]) == set()
