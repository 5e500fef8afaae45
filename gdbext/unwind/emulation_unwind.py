"""Unwinding code that has no call frame information: following it from pc to its return.

MKL's kernels (8,000 functions of libtorch_cpu.so, in which a matrix product spends its time) and generated code have
no CFI and need not keep a frame pointer, but each must take its frame down before it returns. So the instructions from
pc to a return are interpreted on symbols (symbolic_state.py): what the stack pointer and the callee-saved registers are
there, in terms of the registers and the memory at pc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gdbext.arch.base import Architecture
from gdbext.arch.instruction import Instruction
from gdbext.formats.cfi_program import EXPRESSION, OFFSET, SAME, UNDEFINED, VAL_EXPRESSION, Row, Rule
from gdbext.process.code_reader import CodeReader
from gdbext.unwind.symbolic_state import DEREF, WORD, RegisterSymbols, SymbolicState, SymbolicValue

MAX_INSTRUCTIONS = 20_000
"""Interpreted for one pc; MKL's longest kernels have 6,000."""
AFTER_FIRST = 2_000
"""Interpreted in search of more returns, to compare with, when one is found."""
MAX_EXITS = 4
_WINDOW = 512


class EmulationUnwinder:
    """Finds the unwind rows of code addresses without CFI; kept by address."""

    def __init__(
        self, architecture: Architecture, code: CodeReader, starts_function: Callable[[int], bool]
    ) -> None:
        """``starts_function`` tells of an address whether a function is known to begin there."""
        self._architecture = architecture
        self._symbols = RegisterSymbols(architecture)
        self._code = code
        self._starts_function = starts_function
        self._rows: dict[tuple[int, tuple[tuple[str, SymbolicValue], ...]], tuple[Row, ...]] = {}
        self._budget = 0

    def rows(self, pc: int, registers: Mapping[str, int]) -> tuple[Row, ...]:
        """The different rows that returns reachable from ``pc`` give; () when none is found.

        ``registers`` are those of the frame, as far as they are known; the stack pointer must be.
        """
        initial = self._symbols.initial(registers)
        key = (pc, tuple(initial.items()))
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = tuple(self._search(pc, initial))
        return found

    def _search(self, pc: int, initial: dict[str, SymbolicValue]) -> list[Row]:
        pending = [(pc, SymbolicState(self._architecture, dict(initial), {}))]
        visited: dict[int, SymbolicValue | None] = {}
        rows: list[Row] = []
        self._budget = MAX_INSTRUCTIONS
        exits = 0
        while pending and self._budget > 0 and exits < MAX_EXITS:
            address, state = pending.pop()
            end = self._follow(address, state, visited, pending)
            row = self._row(state, initial) if end == "ret" else None
            if row is not None:
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
                if one.target is not None:
                    pending.append((one.target, state.copy()))
            elif one.kind == "jmp":
                if one.target is not None:
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

    def _row(self, state: SymbolicState, initial: dict[str, SymbolicValue]) -> Row | None:
        """The row that follows from the state at a return; None where the stack pointer is not known there, or the path
        wrote over the return address."""
        architecture, top = self._architecture, state.top
        if top is None or (architecture.call_pushes and top in state.slots):
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
            return Row(register, cfa.added, None, rules, column, False)
        return Row(-1, 0, cfa.code(), rules, column, False)

    def _kept(self, number: int, state: SymbolicState, initial: dict[str, SymbolicValue], cfa: SymbolicValue) -> Rule:
        """Where the caller's value of a register is."""
        name = self._architecture.dwarf_registers[number]
        value = state.registers.get(name)
        return Rule(SAME) if value is not None and value == initial.get(name) else _rule(value, cfa)


def _rule(value: SymbolicValue | None, cfa: SymbolicValue) -> Rule:
    if value is None:
        return Rule(UNDEFINED)
    for offset in range(-2 * WORD, -64 * WORD, -WORD):  # saved at a fixed distance from the return address
        if value == cfa.plus(offset).loaded():
            return Rule(OFFSET, offset)
    if value.added == 0 and value.root.endswith(DEREF):
        return Rule(EXPRESSION, 0, value.root[:-1])
    return Rule(VAL_EXPRESSION, 0, value.code())
