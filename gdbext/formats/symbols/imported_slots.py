"""Which words of a library the loader sets to the address of a function: stubs of its linkage table jump through them.

Elf64_Rela, and the tags of the tables: System V ABI, chapters "Relocation" and "Dynamic Linking" (elf.h).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

from gdbext.formats.elf.elf import ElfImage
from gdbext.formats.symbols.symbol_table import dynamic_table

_RELA = struct.Struct("<QQq")
"""r_offset, r_info (number of the symbol from bit 32 on), r_addend."""
_TABLES = ((23, 2), (7, 8))
"""(DT_JMPREL, DT_PLTRELSZ) and (DT_RELA, DT_RELASZ): where a table is, and its bytes."""
_RELATIVE_COUNT = 0x6FFFFFF9
"""DT_RELACOUNT: so many entries at the beginning of DT_RELA have no symbol."""
_LIMIT = 1 << 28
"""Bytes of a table."""


def imported_slots(image: ElfImage, names: Collection[str]) -> set[int]:
    """The virtual addresses of the slots that hold the address of one of these symbols, be it defined in the library or
    not. Raises SymbolFileError."""
    table = dynamic_table(image)
    if table is None:
        return set()
    wanted = {
        number for name in names for number in table.numbers_with([name.encode()])
        if table.is_named(number, name.encode())
    }  # fmt: skip
    return {slot for slot, number in _relocations(image) if number in wanted} if wanted else set()


def _relocations(image: ElfImage) -> Iterator[tuple[int, int]]:
    """(virtual address, number of the symbol)"""
    dynamic = image.dynamic
    for where, size in _TABLES:
        skipped = dynamic.get(_RELATIVE_COUNT, 0) * _RELA.size if where == 7 else 0
        length = min(dynamic.get(size, 0), _LIMIT) - skipped
        raw = image.read(dynamic.get(where, -1) + skipped, length) if where in dynamic and length > 0 else None
        if raw is not None:
            for slot, info, _ in _RELA.iter_unpack(raw[: len(raw) // _RELA.size * _RELA.size]):
                yield slot, info >> 32
