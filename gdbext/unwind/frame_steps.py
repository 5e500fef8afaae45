"""What can be prepared of a code address: its module, and the step to the caller. Found once per address and kept.

A deep recursion so costs a few dictionary look-ups and one memory read a frame.
"""

from __future__ import annotations

from gdbext.errors import BadData
from gdbext.formats.cfi_program import row_at
from gdbext.model.record import Record
from gdbext.process.code_reader import CodeReader
from gdbext.process.memory import Memory
from gdbext.process.modules import Module, ModuleTable
from gdbext.unwind.frame_tables import FrameTables
from gdbext.unwind.unwind_row import SigreturnRow, UnwindRow, compile_row


class FrameStep(Record):
    """What is known of a code address: the step to the caller, or why there is none.

    ``lookup_pc`` is the address for symbols and unwind rows: within the call instruction where a call returns to pc.
    """

    lookup_pc: int
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
        self._after_call: dict[int, FrameStep] = {}
        self._exact: dict[int, FrameStep] = {}

    def at(self, pc: int, exact: bool) -> FrameStep:
        """The step at ``pc``; ``exact`` where that is the next instruction to run, not where a call returns to."""
        steps = self._exact if exact else self._after_call
        step = steps.get(pc)
        if step is None:
            step = steps[pc] = self._prepare(pc, exact)
        return step

    def starts_function(self, address: int) -> bool:
        """True where call frame information begins a function."""
        try:
            found = self._tables.entry(address)
        except BadData:
            return False
        return found is not None and found[1].start == found[0].vaddr(address)

    def _prepare(self, pc: int, exact: bool) -> FrameStep:
        lookup = pc if exact or pc == 0 else pc - 1
        module = self._modules.find(lookup)
        row, problem = self._compiled(module, lookup) if module is not None else (None, f"no CFI at {pc:#x}")
        if row is None and self._is_sigreturn(pc):
            row = SigreturnRow(self._architecture)
        if row is not None and row.is_signal:
            lookup = pc
        return FrameStep(lookup, module, row, problem, row is not None or self.code.is_code(lookup))

    def _compiled(self, module: Module, pc: int) -> tuple[UnwindRow | None, str]:
        table, problem = self._tables.of(module)
        if table is not None:
            vaddr = module.vaddr(pc)
            try:
                fde = table.find(vaddr)
                if fde is not None:
                    return compile_row(self._architecture, row_at(fde, vaddr)), ""
            except BadData as error:
                return None, f"damaged CFI at {pc:#x}: {error.what}"
        return None, problem or f"no CFI at {pc:#x} ({module.name})"

    def _is_sigreturn(self, pc: int) -> bool:
        """True inside a signal trampoline."""
        frame = self._architecture.signal_frame
        code = frame.trampoline
        return any(self.code.read(pc - entry, len(code)) == code for entry in frame.entries)
