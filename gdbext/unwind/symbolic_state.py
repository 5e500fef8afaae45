"""Code interpreted on symbols: registers and stack words in terms of what they were at one address.

The value of a symbol is a DWARF expression, so that what is found becomes an ordinary unwind row.
"""

from __future__ import annotations

from collections.abc import Mapping

from gdbext.arch.base import Architecture
from gdbext.arch.instruction import PC_RELATIVE, Instruction, MemoryOperand
from gdbext.model.record import Record

WORD = 8
DEREF = b"\x06"
"""DW_OP_deref."""
MAX_STACK_DISTANCE = 1 << 20
_MAX_EXPRESSION = 64
_MAX_SLOTS = 4096


class SymbolicValue(Record):
    """``added`` plus the value of the DWARF expression ``root``."""

    root: bytes
    added: int

    def plus(self, number: int) -> SymbolicValue:
        """So many bytes further."""
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
    """What the registers of an architecture are called in DWARF expressions."""

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
        """The stack pointer."""
        return self.registers.get(self._sp)

    def set(self, name: str | None, value: SymbolicValue | None) -> None:
        """Give a register a value; None makes it unknown."""
        if name is None:
            return
        if value is None:
            self.registers.pop(name, None)
        else:
            self.registers[name] = value

    def load(self, address: SymbolicValue | None) -> SymbolicValue | None:
        """The word at an address."""
        if address is None:
            return None
        return self.slots[address] if address in self.slots else address.loaded()

    def store(self, address: SymbolicValue | None, value: SymbolicValue | None, size: int = WORD) -> None:
        """Write a word, or make all words that ``size`` bytes may touch unknown. An unknown address is taken to be
        none of the frame's save slots."""
        if address is None or len(self.slots) > _MAX_SLOTS:
            return
        if size == WORD:
            self.slots[address] = value
            return
        for offset in range(1 - WORD, min(size, _MAX_SLOTS)):
            if (address.added + offset) % WORD == 0:
                self.slots[address.plus(offset)] = None

    def address(self, memory: MemoryOperand | None) -> SymbolicValue | None:
        """Where a memory operand is, None where that is not known."""
        if memory is None or memory.index_register is not None or memory.base in (None, PC_RELATIVE):
            return None
        base = self.registers.get(memory.base)
        return None if base is None else base.plus(memory.displacement)

    def execute(self, one: Instruction) -> None:
        """Do what ``one``, no jump, does."""
        registers = self.registers
        if one.kind == "push":
            self._push(one)
        elif one.kind == "pop":
            self._pop(one.destination, self.address(one.memory))
        elif one.kind == "leave":
            self.set(self._sp, registers.get(one.destination or ""))
            self._pop(one.destination, None)
        elif one.kind == "mov" and one.destination is None:
            self.store(self.address(one.memory), registers.get(one.source) if one.source else None)
        elif one.kind == "mov" and one.source is not None:
            self.set(one.destination, registers.get(one.source))
        elif one.kind == "mov" and one.memory is not None:
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
        if top is not None:
            self.registers[self._sp] = top.plus(-WORD)
            self.store(top.plus(-WORD), value)

    def _pop(self, destination: str | None, memory: SymbolicValue | None) -> None:
        top = self.top
        value = self.load(top)
        if top is not None:
            self.registers[self._sp] = top.plus(WORD)
        if destination is None:
            self.store(memory, value)
        else:
            self.set(destination, value)

    def _clobber(self, one: Instruction) -> None:
        architecture = self._architecture
        kept = (*architecture.callee_saved, self._sp) if one.kind == "call" else ()
        for name in one.writes:
            if name not in kept:
                self.registers.pop(name, None)
        if one.stored:
            self.store(self.address(one.memory), None, one.stored)
