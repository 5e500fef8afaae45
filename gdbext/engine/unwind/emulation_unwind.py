"""Unwinding code that has no call frame information: following it from pc to its return.

MKL's kernels (8,000 functions of libtorch_cpu.so, in which a matrix product spends its time) and generated code have
no CFI and need not keep a frame pointer, but each must take its frame down before it returns. So the instructions from
pc to a return are interpreted on symbols: what the stack pointer and the callee-saved registers are
there, in terms of the registers and the memory at pc.

It is interpreted on symbols: registers and stack words in terms of what they were at one address.

The value of a symbol is a DWARF expression, so that what is found becomes an ordinary unwind row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.arch.instruction import PC_RELATIVE, Instruction, MemoryOperand
from gdbext.engine.formats.cfi_program import EXPRESSION, OFFSET, SAME, UNDEFINED, VAL_EXPRESSION, CfiRow, Rule
from gdbext.engine.process.code_reader import CodeReader

WORD = 8
DEREF = b"\x06"
"""The operation DW_OP_deref of DWARF."""
MAX_STACK_DISTANCE = 1 << 20
_MAX_EXPRESSION = 64
_MAX_SLOTS = 4096


class SymbolicValue(NamedTuple):
    """``added`` plus the value of the DWARF expression ``root``."""

    root: bytes
    added: int

    def plus(self, number: int) -> SymbolicValue:
        """Return this value plus a number of bytes."""
        return SymbolicValue(self.root, self.added + number)

    def code(self) -> bytes:
        """The DWARF expression of the whole."""
        if not self.added:
            return self.root
        return self.root + b"\x11" + _sleb(self.added) + b"\x22"  # DW_OP_consts, DW_OP_plus

    def loaded(self) -> SymbolicValue | None:
        """The eight bytes at this address, at pc; None where the expression grows too long."""
        code = self.code() + DEREF
        return SymbolicValue(code, 0) if len(code) <= _MAX_EXPRESSION else None


def _sleb(number: int) -> bytes:
    parts = bytearray()
    while True:
        byte = number & 0x7F
        number >>= 7
        if number == (-1 if byte & 0x40 else 0):
            parts.append(byte)
            return bytes(parts)
        parts.append(byte | 0x80)


class RegisterSymbols:
    """The names of the registers of an architecture in DWARF expressions."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.roots = {
            name: bytes((0x70 + number, 0))
            for number, name in enumerate(architecture.dwarf_registers)
            if name != architecture.program_counter
        }
        """DW_OP_bregN 0: the value of a register at pc."""
        self.registers = {root: root[0] - 0x70 for root in self.roots.values()}
        """The DWARF number of a root."""
        self.preserved = [architecture.dwarf_registers.index(name) for name in architecture.callee_saved]

    def initial(self, registers: Mapping[str, int]) -> dict[str, SymbolicValue]:
        """The known registers as symbols. Those that point into the stack are expressed by the stack pointer, so that
        the same stack word has the same symbol by whatever register it is reached."""
        stack_pointer = self.architecture.stack_pointer
        top = registers[stack_pointer]
        found = {}
        for name, root in self.roots.items():
            if name in registers:
                distance = registers[name] - top
                near = 0 <= distance < MAX_STACK_DISTANCE
                found[name] = SymbolicValue(self.roots[stack_pointer], distance) if near else SymbolicValue(root, 0)
        return found


class SymbolicState:
    """Registers and stack words on one path. What is not in ``registers`` is unknown."""

    __slots__ = ("_architecture", "_sp", "registers", "slots")

    def __init__(
        self,
        architecture: Architecture,
        registers: dict[str, SymbolicValue],
        slots: dict[SymbolicValue, SymbolicValue | None],
    ) -> None:
        self._architecture = architecture
        self._sp = architecture.stack_pointer
        self.registers = registers
        self.slots = slots
        """Words that the path has written, by address; all other memory is as it was at pc."""

    def copy(self) -> SymbolicState:
        """The same state, for another path."""
        return SymbolicState(self._architecture, dict(self.registers), dict(self.slots))

    @property
    def top(self) -> SymbolicValue | None:
        """The value of the stack pointer."""
        return self.registers.get(self._sp)

    def set(self, name: str, value: SymbolicValue | None) -> None:
        """Give a register a value; None makes it unknown."""
        if not value:
            self.registers.pop(name, None)
        elif name:
            self.registers[name] = value

    def load(self, address: SymbolicValue | None) -> SymbolicValue | None:
        """The word at an address."""
        if not address:
            return None
        return self.slots[address] if address in self.slots else address.loaded()

    def store(self, address: SymbolicValue | None, value: SymbolicValue | None, size: int = WORD) -> None:
        """Write a word, or make all words that ``size`` bytes may touch unknown. An unknown address is taken to be
        none of the frame's save slots."""
        if not address or len(self.slots) > _MAX_SLOTS:
            return
        if size == WORD:
            self.slots[address] = value
            return
        for offset in range(1 - WORD, min(size, _MAX_SLOTS)):
            if (address.added + offset) % WORD == 0:
                self.slots[address.plus(offset)] = None

    def address(self, memory: MemoryOperand | None) -> SymbolicValue | None:
        """Address of a memory operand, None where it is not known."""
        if not memory or memory.index_register or memory.base in ("", PC_RELATIVE):
            return None
        base = self.registers.get(memory.base)
        return base.plus(memory.displacement) if base else None

    def execute(self, one: Instruction) -> None:
        """Do what ``one``, no jump, does."""
        registers = self.registers
        if one.kind == "push":
            self._push(one)
        elif one.kind == "pop":
            self._pop(one.destination, self.address(one.memory))
        elif one.kind == "leave":
            self.set(self._sp, registers.get(one.destination))
            self._pop(one.destination, None)
        elif one.kind == "mov" and not one.destination:
            self.store(self.address(one.memory), registers.get(one.source))
        elif one.kind == "mov" and one.source:
            self.set(one.destination, registers.get(one.source))
        elif one.kind == "mov" and one.memory:
            self.set(one.destination, self.load(self.address(one.memory)))
        elif one.kind == "lea":
            self.set(one.destination, self.address(one.memory))
        elif one.kind == "add" and one.destination in registers and one.immediate is not None:
            registers[one.destination] = registers[one.destination].plus(one.immediate)
        else:
            self._clobber(one)

    def _push(self, one: Instruction) -> None:
        top = self.top
        value = self.registers.get(one.source) if one.source else self.load(self.address(one.memory))
        if top:
            self.registers[self._sp] = top.plus(-WORD)
            self.store(top.plus(-WORD), value)

    def _pop(self, destination: str, memory: SymbolicValue | None) -> None:
        top = self.top
        value = self.load(top)
        if top:
            self.registers[self._sp] = top.plus(WORD)
        if destination:
            self.set(destination, value)
        else:
            self.store(memory, value)

    def _clobber(self, one: Instruction) -> None:
        architecture = self._architecture
        kept = (*architecture.callee_saved, self._sp) if one.kind == "call" else ()
        for name in one.writes:
            if name not in kept:
                self.registers.pop(name, None)
        if one.stored:
            self.store(self.address(one.memory), None, one.stored)


MAX_INSTRUCTIONS = 20_000
"""Interpreted for one pc; MKL's longest kernels have 6,000."""
AFTER_FIRST = 2_000
"""Interpreted in search of more returns, to compare with, when one is found."""
MAX_EXITS = 4
_WINDOW = 512


class EmulationUnwinder:
    """Finds the unwind rows of code addresses without CFI; kept by address."""

    def __init__(self, architecture: Architecture, code: CodeReader, starts_function: Callable[[int], bool]) -> None:
        """``starts_function`` tells of an address whether a function is known to begin there."""
        self._architecture = architecture
        self._symbols = RegisterSymbols(architecture)
        self._code = code
        self._starts_function = starts_function
        self._rows: dict[tuple[int, tuple[tuple[str, SymbolicValue], ...]], tuple[CfiRow, ...]] = {}
        self._budget = 0

    def rows(self, pc: int, registers: Mapping[str, int]) -> tuple[CfiRow, ...]:
        """The different rows that returns reachable from ``pc`` give; () when none is found.

        ``registers`` are those of the frame, as far as they are known; the stack pointer must be.
        """
        initial = self._symbols.initial(registers)
        key = (pc, tuple(initial.items()))
        if key not in self._rows:
            self._rows[key] = tuple(self._search(pc, initial))
        return self._rows[key]

    def _search(self, pc: int, initial: dict[str, SymbolicValue]) -> list[CfiRow]:
        pending = [(pc, SymbolicState(self._architecture, dict(initial), {}))]
        visited: dict[int, SymbolicValue | None] = {}
        rows: list[CfiRow] = []
        self._budget = MAX_INSTRUCTIONS
        exits = 0
        while pending and self._budget > 0 and exits < MAX_EXITS:
            address, state = pending.pop()
            end = self._follow(address, state, visited, pending)
            row = self._row(state, initial) if end == "ret" else None
            if row:
                exits += 1
                self._budget = min(self._budget, AFTER_FIRST)
                if row not in rows:
                    rows.append(row)
            elif end == "contradiction":
                return []
        return rows

    def _follow(
        self,
        address: int,
        state: SymbolicState,
        visited: dict[int, SymbolicValue | None],
        pending: list[tuple[int, SymbolicState]],
    ) -> str:
        """Interpret straight code; adds the ways that branch off to ``pending``. Returns what ended it."""
        after_call = False
        for one in self._straight(address):
            self._budget -= 1
            top = state.top
            if one.address in visited:  # in sound code every way to an address has the stack at the same height
                return "visited" if visited[one.address] == top else "contradiction"
            if self._budget <= 0 or (after_call and self._is_beyond(one)):
                return "end"
            visited[one.address] = top
            after_call = one.kind == "call"
            if one.kind == "jcc":
                if one.target:
                    pending.append((one.target, state.copy()))
            elif one.kind == "jmp":
                if one.target:
                    pending.append((one.target, state))
                return "jmp"
            elif one.kind in ("ret", "trap"):
                return one.kind
            else:
                state.execute(one)
        return "end"

    def _is_beyond(self, one: Instruction) -> bool:
        """True when the code behind a call is not the caller's any more: the call does not return."""
        code = self._code.after(one.address, 4)
        beyond = (*self._architecture.padding, *self._architecture.entry_marks)
        return code.startswith(beyond) or self._starts_function(one.address)

    def _straight(self, address: int) -> Iterator[Instruction]:
        """Instructions one after the other from ``address``, as far as they can be read and understood."""
        while True:
            window = self._code.after(address, _WINDOW)
            start = address
            for one in self._architecture.decode(window, start):
                yield one
                address = one.end
                if address - start > len(window) - self._architecture.longest_instruction and len(window) == _WINDOW:
                    break
            if address == start or len(window) < _WINDOW:
                return

    def _row(self, state: SymbolicState, initial: dict[str, SymbolicValue]) -> CfiRow | None:
        """The row that follows from the state at a return; None where the stack pointer is not known there, or the path
        wrote over the return address."""
        architecture, top = self._architecture, state.top
        if not top or (architecture.call_pushes and top in state.slots):
            return None
        cfa = top.plus(architecture.call_pushes)
        if cfa.root == self._symbols.roots[architecture.stack_pointer] and cfa.added < architecture.call_pushes:
            return None  # below the stack pointer
        column = architecture.return_column
        rules = {number: self._kept(number, state, initial, cfa) for number in self._symbols.preserved}
        if architecture.call_pushes:
            rules[column] = Rule(OFFSET, -WORD)
        else:
            rules[column] = self._kept(column, state, initial, cfa)
        register = self._symbols.registers.get(cfa.root)
        if register is not None:
            return CfiRow(register, cfa.added, None, rules, column, False)
        return CfiRow(-1, 0, cfa.code(), rules, column, False)

    def _kept(self, number: int, state: SymbolicState, initial: dict[str, SymbolicValue], cfa: SymbolicValue) -> Rule:
        """The place of the caller's value of a register."""
        name = self._architecture.dwarf_registers[number]
        value = state.registers.get(name)
        return Rule(SAME) if value and value == initial.get(name) else _rule(value, cfa)


def _rule(value: SymbolicValue | None, cfa: SymbolicValue) -> Rule:
    if not value:
        return Rule(UNDEFINED)
    for offset in range(-2 * WORD, -64 * WORD, -WORD):  # saved at a fixed distance from the return address
        if value == cfa.plus(offset).loaded():
            return Rule(OFFSET, offset)
    if value.added == 0 and value.root.endswith(DEREF):
        return Rule(EXPRESSION, 0, value.root[:-1])
    return Rule(VAL_EXPRESSION, 0, value.code())
