"""The unwinder: from a thread's registers to all its frames, by call frame information alone.

A frame's code address decides everything that can be prepared: its module, whether it is a signal trampoline and the
compiled step to its caller. That is done once per address and kept, so that a deep recursion costs a few dictionary
look-ups and one memory read a frame. Where there is no CFI (generated code) weaker means are tried, and the frame they
find says so in ``how``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gdbext.errors import BadData, MemoryFault
from gdbext.formats.cfi_program import row_at
from gdbext.process.code_reader import CodeReader
from gdbext.process.memory import Memory
from gdbext.process.modules import Module, ModuleTable
from gdbext.unwind.fallback_unwind import FallbackUnwinder
from gdbext.unwind.frame_tables import FrameTable, frame_table
from gdbext.unwind.unwind_row import Registers, SigreturnRow, UnwindRow, compile_row

END_OF_STACK = "end of stack"


class NativeFrame:
    """One frame of a native stack.

    ``level`` counts from 0, innermost. ``pc`` and ``sp`` are program counter and stack pointer in this frame; ``cfa``
    is the caller's stack pointer after the return, 0 where it is not known (the last frame of a walk that ended for
    want of CFI). ``registers`` are these two and the callee-saved ones as they were in this frame, fewer where one
    cannot be known; level 0 and a frame that a signal interrupted have all. ``how`` tells by what this frame was found:

    - ``registers``: the thread's own registers (level 0);
    - ``cfi``: call frame information of the inner frame;
    - ``signal``: the registers that the kernel saved, so ``pc`` is where the signal hit;
    - ``return-address``: the word that a call has just pushed (a call to nowhere, code at a function's edge);
    - ``code``: code without CFI was followed to its return: next to certain, but not proven;
    - ``frame-pointer``: the frame pointer, in code without CFI: likely, not proven.

    ``lookup_pc`` is the address for symbols: ``pc - 1`` after a call (which may be a function's last instruction),
    else ``pc``. ``is_signal`` marks the trampoline that a signal handler returns to.
    """

    __slots__ = ("cfa", "how", "is_signal", "level", "lookup_pc", "module", "pc", "registers", "sp")

    def __init__(
        self,
        level: int,
        pc: int,
        sp: int,
        registers: Registers,
        cfa: int,
        how: str,
        is_signal: bool,
        lookup_pc: int,
        module: Module | None,
    ) -> None:
        self.level = level
        self.pc = pc
        self.sp = sp
        self.cfa = cfa
        self.registers = registers
        self.how = how
        self.is_signal = is_signal
        self.lookup_pc = lookup_pc
        self.module = module

    def __repr__(self) -> str:
        return f"NativeFrame({self.level}, pc={self.pc:#x}, sp={self.sp:#x}, cfa={self.cfa:#x}, how={self.how!r})"


class _Place(NamedTuple):
    """What is known of a code address: the step to the caller, or why there is none."""

    lookup_pc: int
    module: Module | None
    step: UnwindRow | None
    problem: str
    is_code: bool


class _Stop(Exception):
    """The walk ends; the message is the reason."""


class Unwinder:
    """Walks stacks. One instance serves all threads of a stopped target, as long as its module map stays the same."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self.stopped = ""
        self._architecture = memory.architecture
        self._pc, self._sp = self._architecture.program_counter, self._architecture.stack_pointer
        self._least_growth = self._architecture.call_pushes
        """Nothing at an exact address: longjmp's end has its target's stack pointer already."""
        self._memory = memory
        self._modules = modules
        self._code = CodeReader(memory, modules)
        self._guesser = FallbackUnwinder(memory, modules, self._code, self._starts_function)
        self._tables: dict[int, tuple[FrameTable | None, str]] = {}
        self._after_call: dict[int, _Place] = {}
        self._exact: dict[int, _Place] = {}

    def frames(self, registers: Mapping[str, int], limit: int = 1_000_000) -> Iterator[NativeFrame]:
        """All frames of the thread with these registers, innermost first; at least one.

        Never raises for anything that is on the stack: ``stopped`` then says why the walk ended: "end of stack", or
        a sentence. Memory use does not grow with the number of frames.
        """
        self.stopped = "not finished"
        pc, sp = self._pc, self._sp
        wanted = {*self._architecture.dwarf_registers, pc}
        current = {name: value for name, value in registers.items() if name in wanted}
        how, exact = "registers", True
        seen_trampolines: set[int] = set()
        for level in range(limit):
            place = self._place(current[pc], exact)
            if not exact and not place.is_code:
                self.stopped = _no_code(current[pc])
                return
            cfa, callers, next_how, reason = 0, None, "", ""
            try:
                cfa, callers, next_how = self._step(place, current, exact, seen_trampolines)
            except _Stop as stop:
                cfa, reason = stop.args[1], stop.args[0]
            signal = place.step is not None and place.step.is_signal
            yield NativeFrame(level, current[pc], current[sp], current, cfa, how, signal, place.lookup_pc, place.module)
            if callers is None:
                self.stopped = reason
                return
            current, how, exact = callers, next_how, signal
        self.stopped = f"truncated at {limit} frames"

    def _step(
        self, place: _Place, registers: Registers, exact: bool, seen_trampolines: set[int]
    ) -> tuple[int, Registers, str]:
        """(CFA, the caller's registers, how they were found). Raises _Stop with reason and CFA."""
        step = place.step
        if step is None:
            guess = self._guesser.caller(registers, exact, place.is_code)
            if guess is None:
                raise _Stop(place.problem, 0)
            cfa, callers, how = guess
        else:
            try:
                cfa, callers = step.caller(registers, self._memory.read)
            except MemoryFault as fault:
                raise _Stop(f"stack memory at {fault.address:#x} cannot be read", 0) from None
            except KeyError as unknown:
                raise _Stop(f"{unknown.args[0]} is needed to unwind and is not known here", 0) from None
            except BadData as error:
                raise _Stop(error.what, 0) from None
            if step.ends:
                raise _Stop(END_OF_STACK, cfa)
            how = "signal" if step.is_signal else "cfi"
        pc, sp = self._pc, self._sp
        if pc not in callers or sp not in callers:
            raise _Stop("the return address is not known", cfa)
        if step is not None and step.is_signal:
            if registers[sp] in seen_trampolines:
                raise _Stop(f"signal frames go round in a circle at {registers[sp]:#x}", cfa)
            seen_trampolines.add(registers[sp])
        elif callers[sp] < registers[sp] + (0 if exact else self._least_growth):
            raise _Stop(f"the stack does not grow at {registers[pc]:#x} (damaged)", cfa)
        return callers[sp], callers, how

    def _place(self, pc: int, exact: bool) -> _Place:
        places = self._exact if exact else self._after_call
        place = places.get(pc)
        if place is None:
            place = places[pc] = self._prepare(pc, exact)
        return place

    def _prepare(self, pc: int, exact: bool) -> _Place:
        lookup = pc if exact or pc == 0 else pc - 1
        module = self._modules.find(lookup)
        step, problem = self._compiled(module, lookup) if module is not None else (None, f"no CFI at {pc:#x}")
        if step is None and self._is_sigreturn(pc):
            step = SigreturnRow(self._architecture)
        if step is not None and step.is_signal:
            lookup = pc
        return _Place(lookup, module, step, problem, step is not None or self._code.is_code(lookup))

    def _compiled(self, module: Module, pc: int) -> tuple[UnwindRow | None, str]:
        table, problem = self._table(module)
        if table is not None:
            vaddr = module.vaddr(pc)
            try:
                fde = table.find(vaddr)
                if fde is not None:
                    return compile_row(self._architecture, row_at(fde, vaddr)), ""
            except BadData as error:
                return None, f"damaged CFI at {pc:#x}: {error.what}"
        return None, problem or f"no CFI at {pc:#x} ({module.name})"

    def _starts_function(self, address: int) -> bool:
        """True where call frame information begins a function."""
        module = self._modules.find(address)
        table = self._table(module)[0] if module is not None else None
        if module is None or table is None:
            return False
        try:
            fde = table.find(module.vaddr(address))
        except BadData:
            return False
        return fde is not None and fde.start == module.vaddr(address)

    def _table(self, module: Module) -> tuple[FrameTable | None, str]:
        found = self._tables.get(module.start)
        if found is None:
            try:
                found = frame_table(module, self._memory), ""
            except BadData as error:
                found = None, f"damaged CFI in {module.name}: {error.what}"
            self._tables[module.start] = found
        return found

    def _is_sigreturn(self, pc: int) -> bool:
        """True inside a signal trampoline."""
        frame = self._architecture.signal_frame
        code = frame.trampoline
        return any(self._code.read(pc - entry, len(code)) == code for entry in frame.entries)


def _no_code(pc: int) -> str:
    return END_OF_STACK if pc == 0 else f"return address {pc:#x} is not in executable memory"
