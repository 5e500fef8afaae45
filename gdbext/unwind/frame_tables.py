"""Where a module's call frame information is: in its file, or in the target's memory when the file is gone."""

from __future__ import annotations

from typing import Union

from gdbext.errors import BadData, MemoryFault, SymbolFileError
from gdbext.formats.eh_frame import EntryReader, Reader, ScannedTable, SearchTable
from gdbext.formats.elf_header import Segment
from gdbext.process.memory import Memory
from gdbext.process.memory_image import MemoryImage
from gdbext.process.modules import Module

FrameTable = Union[SearchTable, ScannedTable]


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
    try:
        image = MemoryImage(memory, module.start, module.base, module.path)
    except MemoryFault:
        return None
    except SymbolFileError as error:
        raise BadData(f"no ELF header in memory at {module.start:#x}: {error.what}") from error
    header = image.eh_frame_hdr
    return None if header is None else _table(image.read, header, module.base)
