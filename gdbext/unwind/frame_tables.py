"""Where a module's call frame information is: in its file, or in the target's memory when the file is gone."""

from __future__ import annotations

from typing import Union

from gdbext.errors import BadData, SymbolFileError
from gdbext.formats.eh_frame import EntryReader, Reader, ScannedTable, SearchTable
from gdbext.formats.elf import EHDR, PT_GNU_EH_FRAME, Segment, parse_header, parse_segments
from gdbext.process.memory import Memory
from gdbext.process.modules import Module

FrameTable = Union[SearchTable, ScannedTable]

_HEADERS = 4096
"""Bytes at the start of a module in memory that hold the ELF and program headers (one page is always mapped)."""


def frame_table(module: Module, memory: Memory) -> FrameTable | None:
    """The frame description entries of ``module``, None when it has none. Raises BadData for damaged ones."""
    image = module.image
    if image is None:
        return _from_memory(module, memory)
    header = image.eh_frame_hdr
    if header is not None:
        return _table(image.read, header, 0)
    section = image.sections.get(".eh_frame")
    if section is None:
        return None
    return ScannedTable(EntryReader(image.read), section.address, section.size)


def _table(read: Reader, header: Segment, relocation: int) -> FrameTable:
    table = SearchTable(read, header.vaddr, relocation)
    return table if table.searchable else ScannedTable(table.entries, table.eh_frame)


def _from_memory(module: Module, memory: Memory) -> FrameTable | None:
    """PT_GNU_EH_FRAME is part of what is loaded, so a live process has it even where the file is deleted."""
    data = memory.try_read(module.start, _HEADERS)
    if data is None:
        return None
    try:
        segments = parse_segments(data, parse_header(data[: EHDR.size]))
    except SymbolFileError as error:
        raise BadData(f"no ELF header in memory at {module.start:#x}: {error.what}") from error
    base = module.base

    def read(vaddr: int, size: int) -> bytes | None:
        return memory.try_read(base + vaddr, size)

    header = next((segment for segment in segments if segment.type == PT_GNU_EH_FRAME), None)
    return None if header is None else _table(read, header, base)
