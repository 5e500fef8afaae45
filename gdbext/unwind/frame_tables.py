"""Where a module's call frame information is: in its file, or in the target's memory when the file is gone."""

from __future__ import annotations

from typing import Union

from gdbext.errors import BadData, MemoryFault, SymbolFileError
from gdbext.formats.cfi_program import Row, row_at
from gdbext.formats.eh_frame import EntryReader, Fde, Reader, ScannedTable, SearchTable
from gdbext.formats.elf.elf_header import Segment
from gdbext.process.memory import Memory
from gdbext.process.memory_image import MemoryImage
from gdbext.process.modules import Module, ModuleTable

FrameTable = Union[SearchTable, ScannedTable]


class FrameTables:
    """The tables of all modules of a process, each found once."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self._memory = memory
        self._modules = modules
        self._tables: dict[int, tuple[FrameTable | None, str]] = {}

    def of(self, module: Module) -> tuple[FrameTable | None, str]:
        """The module's table and "", or None and why there is none ("" where it just has none)."""
        found = self._tables.get(module.start)
        if found is None:
            try:
                found = _frame_table(module, self._memory), ""
            except BadData as error:
                found = None, f"damaged CFI in {module.name}: {error.what}"
            self._tables[module.start] = found
        return found

    def entry(self, address: int) -> tuple[Module, Fde] | None:
        """The frame description entry that covers an address, and its module. Raises BadData."""
        module = self._modules.find(address)
        table = self.of(module)[0] if module is not None else None
        fde = table.find(module.vaddr(address)) if module is not None and table is not None else None
        return None if module is None or fde is None else (module, fde)

    def row(self, address: int) -> Row | None:
        """The unwind row that holds at an address, None without one. Raises BadData."""
        found = self.entry(address)
        return None if found is None else row_at(found[1], found[0].vaddr(address))


def _frame_table(module: Module, memory: Memory) -> FrameTable | None:
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
