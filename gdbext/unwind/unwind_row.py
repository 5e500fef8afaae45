"""One step from a frame to its caller, compiled from a row of call frame information.

Almost every row of compiled code says "the CFA is rsp or rbp plus a number, and some registers were pushed next to the
return address". Such a row becomes one memory read and one unpack; the rest goes through ``InterpretedRow``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from gdbext.arch.x86_64.registers import (
    CALLEE_SAVED,
    DWARF_REGISTERS,
    DWARF_RETURN_ADDRESS,
    DWARF_RSP,
    SIGCONTEXT,
    SIGCONTEXT_OFFSET,
)
from gdbext.errors import BadData
from gdbext.formats.cfi_program import EXPRESSION, OFFSET, REGISTER, SAME, UNDEFINED, VAL_EXPRESSION, Row, Rule
from gdbext.formats.dwarf_expression import evaluate

MASK = (1 << 64) - 1
MAX_SPAN = 1024
"""Bytes below the CFA that are read at once for the saved registers."""

Registers = dict[str, int]
ReadMemory = Callable[[int, int], bytes]
_FOLLOWED = frozenset((*CALLEE_SAVED, "rsp", "rip"))


class UnwindRow(Protocol):
    """How to get from a frame to its caller."""

    is_signal: bool
    ends: bool
    """True when the CFI says that there is no caller."""

    def caller(self, registers: Registers, read: ReadMemory) -> tuple[int, Registers]:
        """The CFA and the caller's registers. Raises MemoryFault, BadData, KeyError (a register is unknown)."""


class CompiledRow:
    """CFA = register + offset, registers saved at fixed places shortly below it."""

    __slots__ = (
        "_low", "_offset", "_register", "_return", "_saved", "_span", "_undefined", "_unpack", "ends", "is_signal",
    )  # fmt: skip

    def __init__(self, row: Row, saved: dict[int, int], undefined: list[str]) -> None:
        """``saved`` is DWARF register to offset from the CFA."""
        self.is_signal = False
        self.ends = False
        self._register = register_name(row.cfa_register)
        self._offset = row.cfa_offset
        self._low = min(saved.values())
        self._span = max(saved.values()) + 8 - self._low
        self._unpack = struct.Struct(f"<{self._span // 8}Q").unpack
        self._return = (saved[row.return_register] - self._low) // 8
        self._saved = [
            (DWARF_REGISTERS[number], (offset - self._low) // 8)
            for number, offset in saved.items()
            if DWARF_REGISTERS[number] in CALLEE_SAVED
        ]
        self._undefined = undefined

    def caller(self, registers: Registers, read: ReadMemory) -> tuple[int, Registers]:
        cfa = (registers[self._register] + self._offset) & MASK
        words = self._unpack(read((cfa + self._low) & MASK, self._span))
        known = registers.copy() if len(registers) <= len(_FOLLOWED) else preserved(registers)
        for name, index in self._saved:
            known[name] = words[index]
        for name in self._undefined:
            known.pop(name, None)
        known["rip"] = words[self._return]
        known["rsp"] = cfa
        return cfa, known


class InterpretedRow:
    """Any other row: expressions, signal frames, registers in registers."""

    __slots__ = ("_row", "ends", "is_signal")

    def __init__(self, row: Row) -> None:
        self._row = row
        self.is_signal = row.is_signal
        rule = row.rules.get(row.return_register)
        self.ends = rule is not None and rule.kind == UNDEFINED

    def caller(self, registers: Registers, read: ReadMemory) -> tuple[int, Registers]:
        cfa = self._cfa(registers, read)
        if self.ends:
            return cfa, {}
        row = self._row
        known = dict(registers) if self.is_signal else preserved(registers)
        known["rsp"] = cfa
        for number, rule in row.rules.items():
            if number <= DWARF_RETURN_ADDRESS and (self.is_signal or DWARF_REGISTERS[number] in _FOLLOWED):
                _apply(known, DWARF_REGISTERS[number], rule, cfa, registers, read)
        return_rule = row.rules.get(row.return_register)
        if return_rule is None or return_rule.kind == SAME:
            raise BadData("the call frame information does not say where the return address is")
        return cfa, known

    def _cfa(self, registers: Registers, read: ReadMemory) -> int:
        row = self._row
        if row.cfa_code is None:
            return (registers[register_name(row.cfa_register)] + row.cfa_offset) & MASK
        return _evaluate(row.cfa_code, registers, read)


class SigreturnRow:
    """A signal trampoline recognised by its code: the kernel's ``struct ucontext`` is at the stack pointer."""

    __slots__ = ("ends", "is_signal")

    def __init__(self) -> None:
        self.is_signal = True
        self.ends = False

    def caller(self, registers: Registers, read: ReadMemory) -> tuple[int, Registers]:
        size = max(SIGCONTEXT.values()) + 8
        words = struct.unpack(f"<{size // 8}Q", read((registers["rsp"] + SIGCONTEXT_OFFSET) & MASK, size))
        known = {name: words[offset // 8] for name, offset in SIGCONTEXT.items()}
        return known["rsp"], known


def preserved(registers: Registers) -> Registers:
    """Of the registers of a frame, those that a call leaves alone (with the caller's rip and rsp still to come)."""
    return {name: registers[name] for name in CALLEE_SAVED if name in registers}


def register_name(number: int) -> str:
    """The name of a DWARF register. Raises BadData for those that we do not follow (vectors, segments)."""
    if not 0 <= number < len(DWARF_REGISTERS):
        raise BadData(f"call frame information refers to DWARF register {number}")
    return DWARF_REGISTERS[number]


def compile_row(row: Row) -> UnwindRow:
    """The cheapest step that does what ``row`` says. Raises BadData for a row that makes no sense."""
    if row.cfa_code is None:
        register_name(row.cfa_register)
    if row.return_register != DWARF_RETURN_ADDRESS:
        raise BadData(f"return address in DWARF register {row.return_register}")
    saved = {n: rule.number for n, rule in row.rules.items() if rule.kind == OFFSET and n <= DWARF_RETURN_ADDRESS}
    undefined = [
        DWARF_REGISTERS[n] for n, rule in row.rules.items() if rule.kind == UNDEFINED and n < DWARF_RETURN_ADDRESS
    ]
    simple = all(
        rule.kind in (OFFSET, UNDEFINED, SAME) for n, rule in row.rules.items() if n <= DWARF_RETURN_ADDRESS
    )
    if row.is_signal or row.cfa_code is not None or not simple or not _compact(saved):
        return InterpretedRow(row)
    return CompiledRow(row, saved, undefined)


def _compact(saved: dict[int, int]) -> bool:
    """True when all saved registers, the return address among them, can be had by one small aligned read."""
    if DWARF_RETURN_ADDRESS not in saved or DWARF_RSP in saved:
        return False
    low, high = min(saved.values()), max(saved.values())
    return high + 8 - low <= MAX_SPAN and all((offset - low) % 8 == 0 for offset in saved.values())


def _apply(
    known: Registers, name: str, rule: Rule, cfa: int, registers: Registers, read: ReadMemory
) -> None:
    """Set ``known[name]`` as ``rule`` says; a rule that needs an unknown register makes it unknown."""
    try:
        known[name] = _value(rule, name, cfa, registers, read)
    except KeyError:
        known.pop(name, None)


def _value(rule: Rule, name: str, cfa: int, registers: Registers, read: ReadMemory) -> int:
    if rule.kind == UNDEFINED:
        raise KeyError(name)
    if rule.kind == SAME:
        return registers[name]
    if rule.kind == REGISTER:
        return registers[register_name(rule.number)]
    if rule.kind in (EXPRESSION, VAL_EXPRESSION):
        value = _evaluate(rule.code, registers, read, (cfa,))
    else:
        value = (cfa + rule.number) & MASK
    if rule.kind in (OFFSET, EXPRESSION):
        return int.from_bytes(read(value, 8), "little")
    return value


def _evaluate(code: bytes, registers: Registers, read: ReadMemory, initial: tuple[int, ...] = ()) -> int:
    def register(number: int) -> int:
        return registers[register_name(number)]

    def dereference(address: int, size: int) -> int:
        return int.from_bytes(read(address, size), "little")

    return evaluate(code, register, dereference, initial)
