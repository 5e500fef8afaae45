"""Prepares and caches the step from a code address to the caller, from the modules' call frame information.

So a frame of a deep recursion costs a few dictionary lookups and one memory read. A module's call frame information is
in its file, or in the target's memory if the file is gone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.formats.cfi_program import row_at
from gdbext.engine.formats.eh_frame import EntryReader, Fde, ScannedTable, SearchTable
from gdbext.engine.process.code_reader import CodeReader
from gdbext.engine.process.modules import MemoryImage
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.unwind.unwind_row import Registers, UnwindRow, compile_row, sigreturn_row
from gdbext.errors import BadData, MemoryFault, SymbolFileError

if TYPE_CHECKING:
    from typing import Union

    from gdbext.engine.arch import Architecture
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.modules import Module, ModuleTable

    FrameTable = Union[SearchTable, ScannedTable]


class NativeFrame(NamedTuple):
    """One frame of a native stack."""

    level: int  # 0 for the innermost
    pc: int
    sp: int
    registers: Registers
    """pc, sp and the known callee-saved registers as they were in this frame. Level 0 and a frame that a signal
    interrupted have all."""
    cfa: int
    """The caller's stack pointer after the return; 0 if unknown (the last frame of a walk that ended for lack of
    call frame information, CFI)."""
    how: str
    """The method by which this frame was found:

    - ``registers``: the thread's own registers (level 0);
    - ``cfi``: CFI of the inner frame;
    - ``signal``: the registers that the kernel saved, so ``pc`` is where the signal hit;
    - ``call``: CFI, with a CFA by the only return address on the stack whose call leads to the inner function;
    - ``return-address``: the word that a call has just pushed (a call to an invalid address, a function's first or last
      instructions);
    - ``code``: code without CFI was emulated to its return: nearly certain, but not proven;
    - ``frame-pointer``: the frame pointer, in code without CFI: likely, not proven.
    """
    is_signal: bool  # the trampoline to which a signal handler returns
    lookup_pc: int
    """The address for symbols: ``pc - 1`` after a call (which may be a function's last instruction), else ``pc``."""
    module: Module | None


class FrameTables:
    """The tables of call frame information of all modules of a process, each read once."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self._memory = memory
        self._modules = modules
        self._tables: dict[int, tuple[FrameTable | None, str]] = {}
        self._extents: dict[int, Function | None] = {}  # by any address in it

    def of(self, module: Module) -> tuple[FrameTable | None, str]:
        """(the module's table, ""), or (None, the error in reading it; "" if the module has none)."""
        table = self._tables.get(module.start)
        if not table:
            try:
                table = _frame_table(module, self._memory), ""
            except BadData as error:
                table = None, f"damaged CFI in {module.name}: {error.what}"
            self._tables[module.start] = table
        return table

    def entry(self, address: int) -> tuple[Module, Fde] | None:
        """The frame description entry that covers an address, and its module. Raises BadData."""
        module = self._modules.find(address)
        table = self.of(module)[0] if module else None
        fde = table.find(module.vaddr(address)) if module and table else None
        return None if not module or not fde else (module, fde)

    def extent(self, address: int) -> Function | None:
        """The code around an address without a symbol, as a function without a name, by its frame description entry;
        None if there is none."""
        if address not in self._extents:
            extent = None
            with suppress(BadData):
                entry = self.entry(address)
                if entry:
                    module, fde = entry
                    extent = Function(module.base + fde.start, fde.end - fde.start, (), module)
            self._extents[address] = extent
        return self._extents[address]


def _frame_table(module: Module, memory: Memory) -> FrameTable | None:
    """The frame description entries of ``module``, None if it has none. Raises BadData for damaged ones."""
    image, relocation = module.image, 0
    if not image:
        # PT_GNU_EH_FRAME is loaded, so a live process has it even if the file is deleted.
        try:
            image, relocation = MemoryImage(memory, module.start, module.base, module.path), module.base
        except MemoryFault:
            return None
        except SymbolFileError as error:
            raise BadData(f"no ELF header in memory at {module.start:#x}: {error.what}") from error
    header = image.eh_frame_hdr
    if header:
        table = SearchTable(image.read, header.vaddr, relocation)
        return table if table.searchable else ScannedTable(table.entries, table.eh_frame)
    section = image.sections.get(".eh_frame") if module.image else None
    return ScannedTable(EntryReader(image.read), section.address, section.size) if section else None


class FrameStep(NamedTuple):
    """The step from a code address to the caller by ``row``, or the ``problem`` if there is none."""

    lookup_pc: int  # the address for symbols and unwind rows: inside the call instruction if pc is a return address
    module: Module | None
    row: UnwindRow | None
    problem: str
    is_code: bool


class FrameSteps:
    """The steps of one process, as long as its module map stays the same."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self.code = CodeReader(memory, modules)
        self._architecture = memory.architecture
        self._modules = modules
        self._tables = FrameTables(memory, modules)
        self._after_call: dict[int, FrameStep] = {}  # by return address
        self._exact: dict[int, FrameStep] = {}  # by pc

    def at(self, pc: int, exact: bool) -> FrameStep:
        """The step at ``pc``; ``exact``: that is the next instruction to run, not a return address."""
        steps = self._exact if exact else self._after_call
        step = steps.get(pc)
        if not step:
            step = steps[pc] = self._prepare(pc, exact)
        return step

    def function_start(self, address: int) -> int:
        """The start of the function whose call frame information covers an address; 0 if there is none."""
        function = self._tables.extent(address)
        return function.start if function else 0

    def _prepare(self, pc: int, exact: bool) -> FrameStep:
        """The step at ``pc``, by call frame information or as a signal trampoline."""
        lookup_pc = pc if exact or pc == 0 else pc - 1
        module = self._modules.find(lookup_pc)
        row, problem = self._compiled(module, lookup_pc) if module else (None, f"no CFI at {pc:#x}")
        trampoline, entries = self._architecture.signal_frame[:2]
        if not row and any(self.code.read(pc - entry, len(trampoline)) == trampoline for entry in entries):
            row = sigreturn_row(self._architecture)
        if row and row.is_signal:
            lookup_pc = pc
        return FrameStep(lookup_pc, module, row, problem, bool(row) or self.code.is_code(lookup_pc))

    def _compiled(self, module: Module, pc: int) -> tuple[UnwindRow | None, str]:
        """(the unwind row at ``pc``, ""), or (None, the reason)."""
        table, problem = self._tables.of(module)
        if table:
            vaddr = module.vaddr(pc)
            try:
                fde = table.find(vaddr)
                if fde:
                    return compile_row(self._architecture, row_at(fde, vaddr)), ""
            except BadData as error:
                return None, f"damaged CFI at {pc:#x}: {error.what}"
        return None, problem or f"no CFI at {pc:#x} ({module.name})"


class CfaRule(NamedTuple):
    """The CFA (the caller's stack pointer after the return) at an instruction is ``register`` + ``offset``."""

    register: str
    offset: int
    size: int  # least bytes of the frame below the CFA while the function calls others


def cfa_rule_at_entry(architecture: Architecture) -> CfaRule:
    """The rule at a function's first instruction and at its return: only a pushed return address is below the CFA."""
    return CfaRule(architecture.stack_pointer, architecture.call_pushes, architecture.call_pushes)


def cfa_rule_at(architecture: Architecture, tables: FrameTables, address: int, size: int) -> CfaRule | None:
    """The rule at an instruction, None if unknown; ``size`` becomes its size if the CFA is not relative to the stack
    pointer, so that call frame information does not tell it."""
    try:
        entry = tables.entry(address)
        row = row_at(entry[1], entry[0].vaddr(address)) if entry else None
    except (BadData, MemoryFault):
        return None
    names = architecture.dwarf_registers
    if not row or row.cfa_code is not None or not 0 <= row.cfa_register < len(names):
        return None
    register = names[row.cfa_register]
    return CfaRule(register, row.cfa_offset, row.cfa_offset if register == architecture.stack_pointer else size)
