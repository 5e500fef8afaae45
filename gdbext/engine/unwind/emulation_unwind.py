"""Unwinds code without call frame information by emulating it from pc to its return.

MKL's kernels (8,000 functions of libtorch_cpu.so, in which a matrix product spends its time) and generated code have no
CFI and may lack a frame pointer, but each must remove its frame before it returns. So the instructions from pc to a
return are executed with symbolic values: registers and stack words in terms of their values at pc. A symbolic value is
a DWARF expression, so that the result is an ordinary unwind row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.arch.instruction import PC_RELATIVE, Instruction, MemoryOperand
from gdbext.engine.formats.cfi_program import (
    DEREF,
    EXPRESSION,
    OFFSET,
    SAME,
    UNDEFINED,
    VAL_EXPRESSION,
    CfiRow,
    Rule,
    register_code,
    sum_code,
)
from gdbext.engine.process.code_reader import CodeReader

WORD = 8
_MAX_SLOTS = 4096


class SymbolicValue(NamedTuple):
    """``added`` plus the value of the DWARF expression ``root``."""

    root: bytes
    added: int

    def plus(self, number: int) -> SymbolicValue:
        """The sum of this value and a number."""
        return SymbolicValue(self.root, self.added + number)

    def code(self) -> bytes:
        """The DWARF expression of the whole value."""
        return sum_code(self.root, self.added)

    def loaded(self) -> SymbolicValue | None:
        """The word in memory at this address; None if its expression would be too long."""
        code = self.code() + DEREF
        return SymbolicValue(code, 0) if len(code) <= 256 else None


class SymbolicState(NamedTuple):
    """Registers and stack words on one path; both change as the path is followed."""

    architecture: Architecture
    registers: dict[str, SymbolicValue]  # without the unknown ones
    slots: dict[SymbolicValue, SymbolicValue | None]
    """Address → value of the words that the path has written (None: unknown); other memory is as it was at pc."""

    def copy(self) -> SymbolicState:
        """The state for the other path of a conditional jump."""
        return SymbolicState(self.architecture, dict(self.registers), dict(self.slots))

    @property
    def top(self) -> SymbolicValue | None:
        """The stack pointer, None if unknown."""
        return self.registers.get(self.architecture.stack_pointer)

    def set(self, name: str, value: SymbolicValue | None) -> None:
        """Give a register a value; None makes it unknown."""
        if not value:
            self.registers.pop(name, None)
        elif name:
            self.registers[name] = value

    def load(self, address: SymbolicValue | None) -> SymbolicValue | None:
        """The word at an address, None if either is unknown."""
        if not address:
            return None
        return self.slots[address] if address in self.slots else address.loaded()

    def store(self, address: SymbolicValue | None, value: SymbolicValue | None, size: int = WORD) -> None:
        """Write a word; with another ``size``, make all words that may be changed unknown. An unknown address is
        assumed not to be one of the frame's save slots."""
        if not address or len(self.slots) > _MAX_SLOTS:
            return
        if size == WORD:
            self.slots[address] = value
            return
        for offset in range(1 - WORD, min(size, _MAX_SLOTS)):
            if (address.added + offset) % WORD == 0:
                self.slots[address.plus(offset)] = None

    def address(self, memory: MemoryOperand | None) -> SymbolicValue | None:
        """Address of a memory operand, None if unknown."""
        if not memory or memory.index_register or memory.base in ("", PC_RELATIVE):
            return None
        base = self.registers.get(memory.base)
        return base.plus(memory.displacement) if base else None

    def execute(self, insn: Instruction) -> None:
        """Apply an instruction that is no jump."""
        registers = self.registers
        if insn.kind == "push":
            top = self.top
            value = registers.get(insn.source) if insn.source else self.load(self.address(insn.memory))
            if top:
                registers[self.architecture.stack_pointer] = top.plus(-WORD)
                self.store(top.plus(-WORD), value)
        elif insn.kind == "pop":
            self._pop(insn.destination, self.address(insn.memory))
        elif insn.kind == "leave":
            self.set(self.architecture.stack_pointer, registers.get(insn.destination))
            self._pop(insn.destination, None)
        elif insn.kind == "mov" and not insn.destination:
            self.store(self.address(insn.memory), registers.get(insn.source))
        elif insn.kind == "mov" and insn.source:
            self.set(insn.destination, registers.get(insn.source))
        elif insn.kind == "mov" and insn.memory:
            self.set(insn.destination, self.load(self.address(insn.memory)))
        elif insn.kind == "lea":
            self.set(insn.destination, self.address(insn.memory))
        elif insn.kind == "add" and insn.destination in registers and insn.immediate is not None:
            registers[insn.destination] = registers[insn.destination].plus(insn.immediate)
        else:
            preserved = (*self.architecture.callee_saved, self.architecture.stack_pointer)
            for name in insn.writes.difference(preserved if insn.is_call else ()):
                registers.pop(name, None)
            if insn.stored:
                self.store(self.address(insn.memory), None, insn.stored)

    def _pop(self, destination: str, memory: SymbolicValue | None) -> None:
        """Pop a word into the register ``destination`` or, if that is "", to the address ``memory``."""
        top = self.top
        value = self.load(top)
        if top:
            self.registers[self.architecture.stack_pointer] = top.plus(WORD)
        if destination:
            self.set(destination, value)
        else:
            self.store(memory, value)


MAX_INSTRUCTIONS = 20_000  # instructions emulated for one pc; MKL's longest kernels have 6,000
_WINDOW = 512  # bytes of code that are decoded at once


class EmulationUnwinder:
    """Finds the unwind rows of code addresses without CFI, and caches them."""

    def __init__(self, architecture: Architecture, code: CodeReader, starts_function: Callable[[int], bool]) -> None:
        """``starts_function`` tells whether a function is known to begin at an address."""
        self._architecture = architecture
        self._roots = {name: register_code(number) for number, name in enumerate(architecture.dwarf_registers)}
        """Register → the expression of its value at pc."""
        del self._roots[architecture.program_counter]
        self._code = code
        self._starts_function = starts_function
        self._rows: dict[tuple[int, tuple[tuple[str, SymbolicValue], ...]], tuple[CfiRow, ...]] = {}
        self._budget = 0  # instructions that the current search may still emulate
        self._pending: list[tuple[int, SymbolicState]] = []  # its paths that are not followed yet, by their starts
        self._heights: dict[int, SymbolicValue | None] = {}  # the stack pointer at each address that it has visited

    def rows(self, pc: int, registers: Mapping[str, int]) -> tuple[CfiRow, ...]:
        """The different rows by the returns that are reachable from ``pc``; () if there are none. ``registers`` are the
        frame's known ones, the stack pointer at least."""
        stack_pointer = self._architecture.stack_pointer
        top = registers[stack_pointer]
        initial = {}
        for name, root in self._roots.items():
            if name in registers:
                # A pointer into the stack is expressed by the stack pointer, so that a stack word has one symbolic
                # address, whatever register points to it.
                distance = registers[name] - top
                near = 0 <= distance < 1 << 20
                initial[name] = SymbolicValue(self._roots[stack_pointer], distance) if near else SymbolicValue(root, 0)
        key = (pc, tuple(initial.items()))
        if key not in self._rows:
            self._rows[key] = tuple(self._search(pc, initial))
        return self._rows[key]

    def _search(self, pc: int, initial: dict[str, SymbolicValue]) -> list[CfiRow]:
        """The rows by up to four returns; [] if two paths contradict each other."""
        self._pending = [(pc, SymbolicState(self._architecture, dict(initial), {}))]
        self._heights = {}
        self._budget = MAX_INSTRUCTIONS
        rows: list[CfiRow] = []
        exits = 0
        while self._pending and self._budget > 0 and exits < 4:
            address, state = self._pending.pop()
            end = self._follow(address, state)
            row = self._row(state, initial) if end == "ret" else None
            if row:
                exits += 1
                self._budget = min(self._budget, 2_000)  # enough to find more returns, to compare with
                if row not in rows:
                    rows.append(row)
            elif end == "contradiction":
                return []
        return rows

    def _follow(self, address: int, state: SymbolicState) -> str:
        """Emulate one path, and note the paths that branch off. Returns why it ended: "ret", "jmp", "trap", "visited",
        "contradiction" or "end"."""
        after_call = False
        beyond = (*self._architecture.padding, *self._architecture.entry_marks)
        for insn in self._straight(address):
            self._budget -= 1
            top = state.top
            if insn.address in self._heights:  # in sound code every path to an address has the stack at the same height
                return "visited" if self._heights[insn.address] == top else "contradiction"
            if self._budget <= 0:
                return "end"
            if after_call:
                is_padding = self._code.read_after(insn.address, 4).startswith(beyond)
                if is_padding or self._starts_function(insn.address):
                    return "end"  # the call does not return: another function's code
            self._heights[insn.address] = top
            after_call = insn.kind == "call"
            if insn.kind in ("jcc", "jmp") and insn.target:
                self._pending.append((insn.target, state.copy()))
            if insn.kind in ("jmp", "ret", "trap"):
                return insn.kind
            if insn.kind != "jcc":
                state.execute(insn)
        return "end"

    def _straight(self, address: int) -> Iterator[Instruction]:
        """Consecutive instructions from ``address`` on, up to the first that cannot be read or decoded."""
        while True:
            window = self._code.read_after(address, _WINDOW)
            start = address
            for insn in self._architecture.decode(window, start):
                yield insn
                address = insn.end
                if address - start > len(window) - self._architecture.longest_instruction and len(window) == _WINDOW:
                    break
            if address == start or len(window) < _WINDOW:
                return

    def _row(self, state: SymbolicState, initial: dict[str, SymbolicValue]) -> CfiRow | None:
        """The row by the state at a return; None if the stack pointer is unknown there, or the path overwrote the
        return address."""
        architecture, top = self._architecture, state.top
        if not top or (architecture.call_pushes and top in state.slots):
            return None
        cfa = top.plus(architecture.call_pushes)
        if cfa.root == self._roots[architecture.stack_pointer] and cfa.added < architecture.call_pushes:
            return None  # below the stack pointer
        column = architecture.return_column
        names = architecture.dwarf_registers
        rules = {names.index(name): _rule(name, state, initial, cfa) for name in architecture.callee_saved}
        rules[column] = Rule(OFFSET, -WORD) if architecture.call_pushes else _rule(names[column], state, initial, cfa)
        if cfa.root in self._roots.values():
            return CfiRow(cfa.root[0] - 0x70, cfa.added, None, rules, column, is_signal=False)
        return CfiRow(-1, 0, cfa.code(), rules, column, is_signal=False)


def _rule(name: str, state: SymbolicState, initial: dict[str, SymbolicValue], cfa: SymbolicValue) -> Rule:
    """The rule for the caller's value of the register ``name``, by the state at the return."""
    value = state.registers.get(name)
    if not value:
        return Rule(UNDEFINED)
    if value == initial.get(name):
        return Rule(SAME)
    for offset in range(-2 * WORD, -64 * WORD, -WORD):  # saved at a fixed distance from the return address
        if value == cfa.plus(offset).loaded():
            return Rule(OFFSET, offset)
    if value.added == 0 and value.root.endswith(DEREF):
        return Rule(EXPRESSION, 0, value.root[:-1])
    return Rule(VAL_EXPRESSION, 0, value.code())
