"""Finding a caller where there is no call frame information. What is found here is likely, never proven.

Each way has to end at a return address: one that points into executable memory, right behind a call instruction.
"""

from __future__ import annotations

from collections.abc import Callable

from gdbext.errors import BadData, MemoryFault
from gdbext.process.code_reader import CodeReader
from gdbext.process.memory import Memory
from gdbext.process.modules import ModuleTable
from gdbext.unwind.emulation_unwind import EmulationUnwinder
from gdbext.unwind.unwind_row import MASK, Registers, compile_row, preserved

Guess = tuple[int, Registers, str]
"""CFA, the caller's registers, how they were found."""

MAX_FRAME = 1 << 20
"""Bytes between the stack pointer and the frame pointer that are believed where the stack's mapping is unknown."""
_EDGE = 16
"""Bytes of code around pc that tell whether it is at a function's edge."""


class FallbackUnwinder:
    """Finds callers by the return address at the top of the stack, by following the code, or by the frame pointer."""

    def __init__(
        self,
        memory: Memory,
        modules: ModuleTable,
        code: CodeReader,
        starts_function: Callable[[int], bool],
    ) -> None:
        self._architecture = memory.architecture
        self._pc, self._sp = self._architecture.program_counter, self._architecture.stack_pointer
        self._memory = memory
        self._modules = modules
        self._code = code
        self._flow = EmulationUnwinder(self._architecture, code, starts_function)

    def caller(self, registers: Registers, exact: bool, is_code: bool) -> Guess | None:
        """The caller of the frame with these registers; None where nothing plausible is found.

        ``exact`` is true where pc is the next instruction to run (innermost frame, or interrupted by a signal).
        """
        offset: int | None = None
        if exact:
            offset = self._edge(registers[self._pc]) if is_code else 0
        guess = None if offset is None else self._at_stack_top(registers, offset)
        if guess is None and is_code:
            guess = self._by_code(registers) or self._by_frame_pointer(registers)
        return guess

    def _edge(self, pc: int) -> int | None:
        at = self._code.read(pc, _EDGE)
        return None if at is None else self._architecture.return_address_offset(at, self._code.before(pc, _EDGE))

    def _at_stack_top(self, registers: Registers, offset: int) -> Guess | None:
        pushed = self._architecture.call_pushes
        cfa = (registers[self._sp] + offset + pushed) & MASK
        link = self._architecture.dwarf_registers[self._architecture.return_column]
        pc = self._memory.try_u64(cfa - pushed) if pushed else registers.get(link)
        if pc is None or not self._is_return_address(pc):
            return None
        return cfa, {**preserved(self._architecture, registers), self._pc: pc, self._sp: cfa}, "return-address"

    def _by_code(self, registers: Registers) -> Guess | None:
        """By the ways to return that the code at pc has; they must agree where they make sense at all."""
        found: list[tuple[int, Registers]] = []
        for row in self._flow.rows(registers[self._pc], registers):
            try:
                cfa, callers = compile_row(self._architecture, row).caller(registers, self._memory.read)
            except (BadData, MemoryFault, KeyError):
                continue
            is_further = cfa > registers[self._sp] if self._architecture.call_pushes else cfa >= registers[self._sp]
            if is_further and self._is_return_address(callers.get(self._pc, 0)):
                found.append((cfa, callers))
        if not found or any(cfa != found[0][0] for cfa, _ in found):
            return None
        agreed = {
            name: value
            for name, value in found[0][1].items()
            if all(callers.get(name) == value for _, callers in found)
        }
        return found[0][0], agreed, "code"

    def _by_frame_pointer(self, registers: Registers) -> Guess | None:
        frame = registers.get(self._architecture.frame_pointer, 0)
        if not self._in_stack(frame, registers[self._sp]):
            return None
        saved, pc = self._memory.try_u64(frame), self._memory.try_u64(frame + 8)
        if pc is None or saved is None or not self._is_return_address(pc):
            return None
        top = frame + 16
        return top, {self._pc: pc, self._sp: top, self._architecture.frame_pointer: saved}, "frame-pointer"

    def _in_stack(self, frame: int, sp: int) -> bool:
        if frame % 8 or frame < sp:
            return False
        mapping = self._modules.mapping_at(sp)
        return frame < mapping.end if mapping is not None else frame - sp < MAX_FRAME

    def _is_return_address(self, pc: int) -> bool:
        """It points into code, right behind a call as far as that can be read."""
        if not self._code.is_code(pc - 1):
            return False
        before = self._code.before(pc, 8)
        return not before or self._architecture.follows_call(before)
