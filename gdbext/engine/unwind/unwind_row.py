"""One step from a frame to its caller, compiled from a row of call frame information.

Almost every row of compiled code means "the CFA is a register plus a number, and some registers were pushed next to the
return address". Such a row becomes one memory read and one unpack; any other is an ``InterpretedRow``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

from gdbext.engine.formats import cfi_program
from gdbext.engine.formats.cfi_program import Rule
from gdbext.errors import BadData

if TYPE_CHECKING:
    from collections.abc import Callable

    from gdbext.engine.arch import Architecture

    ReadMemory = Callable[[int, int], bytes]

MASK = (1 << 64) - 1

Registers = dict[str, int]


class UnwindRow(Protocol):
    """The step from a frame to its caller."""

    is_signal: bool
    ends: bool  # True if the CFI states that there is no caller

    saves: frozenset[str]
    """Registers whose values in the caller do not depend on those in the frame: saved or changed ones."""

    def caller(self, registers: Registers, read: ReadMemory, cfa: int | None = None) -> tuple[int, Registers]:
        """(CFA, the caller's registers); ``cfa``: the CFA, if it is already known. Raises MemoryFault, BadData,
        KeyError (a needed register is unknown)."""


class CompiledRow:
    """CFA = register + offset, registers saved at fixed places shortly below it."""

    def __init__(
        self,
        architecture: Architecture,
        cfa_register: str,
        cfa_offset: int,
        saved: dict[str, int],
        undefined: list[str],
    ) -> None:
        """``saved``: register → offset of its value from the CFA, the return address among them; ``undefined``:
        registers whose values in the caller are lost."""
        self.is_signal = self.ends = False
        self._pc, self._sp = architecture.program_counter, architecture.stack_pointer
        self._architecture = architecture
        self._followed_count = len(architecture.tracked_registers)
        self.cfa_register, self.cfa_offset = cfa_register, cfa_offset
        self._low = min(saved.values())
        self._span = max(saved.values()) + 8 - self._low
        self._unpack = struct.Struct(f"<{self._span // 8}Q").unpack
        word_of = {name: (offset - self._low) // 8 for name, offset in saved.items()}
        self._return = word_of[architecture.dwarf_registers[architecture.return_column]]
        self._saved = [(name, word) for name, word in word_of.items() if name in architecture.callee_saved]
        self._undefined = undefined
        self.saves = frozenset((*(name for name, _ in self._saved), *undefined))

    def caller(self, registers: Registers, read: ReadMemory, cfa: int | None = None) -> tuple[int, Registers]:
        """(CFA, the caller's registers), as UnwindRow.caller: one read gives all saved words."""
        if cfa is None:
            cfa = (registers[self.cfa_register] + self.cfa_offset) & MASK
        words = self._unpack(read((cfa + self._low) & MASK, self._span))
        callers = (
            registers.copy() if len(registers) <= self._followed_count else preserved(self._architecture, registers)
        )
        for name, index in self._saved:
            callers[name] = words[index]
        for name in self._undefined:
            callers.pop(name, None)
        callers[self._pc] = words[self._return]
        callers[self._sp] = cfa
        return cfa, callers


class InterpretedRow:
    """Any other row: expressions, signal frames, registers in registers."""

    def __init__(self, architecture: Architecture, row: cfi_program.CfiRow) -> None:
        """``row``: the rules to follow, one register after the other."""
        self._architecture = architecture
        self._row = row
        self.is_signal = row.is_signal
        names = architecture.dwarf_registers
        self.saves = frozenset(
            names[number] for number, rule in row.rules.items() if number < len(names) and rule.kind != cfi_program.SAME
        )
        rule = row.rules.get(row.return_register)
        self.ends = bool(rule and rule.kind == cfi_program.UNDEFINED)

    def caller(self, registers: Registers, read: ReadMemory, cfa: int | None = None) -> tuple[int, Registers]:
        """(CFA, the caller's registers), as UnwindRow.caller: each register by its own rule."""
        architecture, row, names = self._architecture, self._row, self._architecture.dwarf_registers
        if cfa is None:
            if row.cfa_code is None:
                cfa = (registers[names[row.cfa_register]] + row.cfa_offset) & MASK
            else:
                cfa = self._evaluate(row.cfa_code, registers, read)
        if self.ends:
            return cfa, {}
        callers = dict(registers) if self.is_signal else preserved(architecture, registers)
        callers[architecture.stack_pointer] = cfa
        for number, rule in row.rules.items():
            name = names[number] if number < len(names) else ""
            if name and (self.is_signal or name in architecture.tracked_registers):
                try:
                    callers[name] = self._value(rule, name, cfa, registers, read)
                except KeyError:  # the rule needs an unknown register
                    callers.pop(name, None)
        # The caller continues at the value of the return column, which is a register of its own where calls leave the
        # return address in one.
        name, rule_of_return = names[row.return_register], row.rules.get(row.return_register)
        if not rule_of_return or rule_of_return.kind == cfi_program.SAME:
            if name == architecture.program_counter:
                raise BadData("the call frame information does not say where the return address is")
            callers[architecture.program_counter] = registers[name]
        elif name in callers:
            callers[architecture.program_counter] = callers[name]
        return cfa, callers

    def _value(self, rule: Rule, name: str, cfa: int, registers: Registers, read: ReadMemory) -> int:
        """The caller's value of the register ``name`` by its rule. Raises KeyError if it is lost or depends on an
        unknown register, MemoryFault, BadData."""
        if rule.kind == cfi_program.UNDEFINED:
            raise KeyError(name)
        if rule.kind == cfi_program.SAME:
            return registers[name]
        if rule.kind == cfi_program.REGISTER:
            return registers[_register_name(self._architecture, rule.number)]
        if rule.kind in (cfi_program.EXPRESSION, cfi_program.VAL_EXPRESSION):
            value = self._evaluate(rule.code, registers, read, (cfa,))
        else:
            value = (cfa + rule.number) & MASK
        if rule.kind in (cfi_program.OFFSET, cfi_program.EXPRESSION):
            return int.from_bytes(read(value, 8), "little")
        return value

    def _evaluate(self, code: bytes, registers: Registers, read: ReadMemory, initial: tuple[int, ...] = ()) -> int:
        """The value of a DWARF expression in this frame; ``initial`` is its stack at the start."""
        return cfi_program.evaluate(
            code,
            lambda number: registers[_register_name(self._architecture, number)],
            lambda address, size: int.from_bytes(read(address, size), "little"),
            initial,
        )


def sigreturn_row(architecture: Architecture) -> UnwindRow:
    """The row of a signal trampoline, recognized by its code: the registers that the kernel saved are at fixed offsets
    above the stack pointer."""
    frame, names = architecture.signal_frame, architecture.dwarf_registers
    top = cfi_program.register_code(names.index(architecture.stack_pointer))
    addresses = {name: cfi_program.sum_code(top, frame.context + offset) for name, offset in frame.saved.items()}
    rules = {names.index(name): Rule(cfi_program.EXPRESSION, number=0, code=code) for name, code in addresses.items()}
    cfa_code = addresses[architecture.stack_pointer] + cfi_program.DEREF  # the CFA is the saved stack pointer
    column = architecture.return_column
    row = cfi_program.CfiRow(
        cfa_register=-1, cfa_offset=0, cfa_code=cfa_code, rules=rules, return_register=column, is_signal=True
    )
    return InterpretedRow(architecture, row)


def preserved(architecture: Architecture, registers: Registers) -> Registers:
    """Those of a frame's registers that a called function restores, so that the caller has them, too."""
    return {name: registers[name] for name in architecture.callee_saved if name in registers}


def compile_row(architecture: Architecture, row: cfi_program.CfiRow) -> UnwindRow:
    """The cheapest step that implements ``row``. Raises BadData for an impossible row."""
    if row.cfa_code is None:
        _register_name(architecture, row.cfa_register)
    if row.return_register != architecture.return_column:
        raise BadData(f"return address in DWARF register {row.return_register}")
    names = architecture.dwarf_registers
    rules = {names[number]: rule for number, rule in row.rules.items() if number < len(names)}
    saved = {name: rule.number for name, rule in rules.items() if rule.kind == cfi_program.OFFSET}
    is_plain = not row.is_signal and row.cfa_code is None and architecture.stack_pointer not in saved
    is_plain &= {rule.kind for rule in rules.values()} <= {cfi_program.OFFSET, cfi_program.UNDEFINED, cfi_program.SAME}
    if not is_plain or names[row.return_register] not in saved:
        return InterpretedRow(architecture, row)
    low, high = min(saved.values()), max(saved.values())
    if high + 8 - low > 1024 or any((offset - low) % 8 for offset in saved.values()):
        return InterpretedRow(architecture, row)  # not one small aligned read
    undefined = [name for name, rule in rules.items() if rule.kind == cfi_program.UNDEFINED]
    return CompiledRow(architecture, names[row.cfa_register], row.cfa_offset, saved, undefined)


def _register_name(architecture: Architecture, number: int) -> str:
    """The name of a DWARF register. Raises BadData for vector and segment registers, which are not tracked."""
    if not 0 <= number < len(architecture.dwarf_registers):
        raise BadData(f"call frame information refers to DWARF register {number}")
    return architecture.dwarf_registers[number]
