"""Call frame programs: from the bytes of a CIE and an FDE to the row that holds at one address (DWARF 5, 6.4)."""

from __future__ import annotations

from gdbext.engine.formats.eh_frame import Cie, Fde, sleb128, uleb128
from gdbext.engine.record import Record
from gdbext.errors import BadData

UNDEFINED, SAME, OFFSET, VAL_OFFSET, REGISTER, EXPRESSION, VAL_EXPRESSION = range(7)
"""Kinds of register rule (DWARF 5, 6.4.1)."""

MAX_REMEMBERED = 1000
"""Depth of DW_CFA_remember_state; compilers use one."""


class Rule(Record):
    """The rule by which the caller's value of a register is found: ``number`` is an offset or a register, ``code`` an
    expression."""

    kind: int
    number: int = 0
    code: bytes = b""


class CfiRow(Record):
    """The unwind rules at one address. Where ``cfa_code`` is set the CFA is its value, else register + offset."""

    cfa_register: int
    cfa_offset: int
    cfa_code: bytes | None
    rules: dict[int, Rule]
    return_register: int
    is_signal: bool


class _Program:
    """Runs call frame instructions until the wanted address is passed."""

    def __init__(self, cie: Cie, location: int, wanted: int) -> None:
        self.cie = cie
        self.location = location
        self.wanted = wanted
        self.cfa: tuple[int, int, bytes | None] = (-1, 0, None)
        self.rules: dict[int, Rule] = {}
        self.initial: dict[int, Rule] = {}
        self.remembered: list[tuple[tuple[int, int, bytes | None], dict[int, Rule]]] = []

    def run(self, code: bytes) -> None:
        position = 0
        end = len(code)
        while position < end:
            opcode = code[position]
            position += 1
            high = opcode & 0xC0
            if high == 0x40:  # DW_CFA_advance_loc
                if self._advance(opcode & 0x3F):
                    return
            elif high == 0x80:  # DW_CFA_offset
                factor, position = uleb128(code, position)
                self.rules[opcode & 0x3F] = Rule(OFFSET, factor * self.cie.data_align)
            elif high == 0xC0:  # DW_CFA_restore
                self._restore(opcode & 0x3F)
            elif opcode == 0x0E:  # DW_CFA_def_cfa_offset
                offset, position = uleb128(code, position)
                self.cfa = (self.cfa[0], offset, None)
            elif 0x01 <= opcode <= 0x04 or opcode == 0x1D:
                delta, position = self._delta(opcode, code, position)
                if self._advance(delta):
                    return
            else:
                position = self._other(opcode, code, position)

    def _advance(self, delta: int) -> bool:
        """Moves on; True when the row that was built so far is the wanted one."""
        self.location += delta * self.cie.code_align
        return self.location > self.wanted

    def _delta(self, opcode: int, code: bytes, position: int) -> tuple[int, int]:
        if opcode == 0x01:  # DW_CFA_set_loc: an address, in the FDE's own encoding
            raise BadData("DW_CFA_set_loc, which no compiler emits")
        size = {0x02: 1, 0x03: 2, 0x04: 4, 0x1D: 8}[opcode]  # advance_loc1, 2, 4, MIPS_advance_loc8
        return int.from_bytes(code[position : position + size], "little"), position + size

    def _restore(self, register: int) -> None:
        rule = self.initial.get(register)
        if rule is None:
            self.rules.pop(register, None)
        else:
            self.rules[register] = rule

    def _other(self, opcode: int, code: bytes, position: int) -> int:
        """One of the rarer instructions; returns the position after it."""
        if opcode == 0x00:  # DW_CFA_nop
            return position
        if opcode == 0x0A:  # DW_CFA_remember_state
            if len(self.remembered) >= MAX_REMEMBERED:
                raise BadData("DW_CFA_remember_state without end")
            self.remembered.append((self.cfa, dict(self.rules)))
            return position
        if opcode == 0x0B:  # DW_CFA_restore_state
            if not self.remembered:
                raise BadData("DW_CFA_restore_state without DW_CFA_remember_state")
            self.cfa, self.rules = self.remembered.pop()
            return position
        if opcode == 0x0F:  # DW_CFA_def_cfa_expression
            block, position = _block(code, position)
            self.cfa = (-1, 0, block)
            return position
        if opcode == 0x13:  # DW_CFA_def_cfa_offset_sf
            factor, position = sleb128(code, position)
            self.cfa = (self.cfa[0], factor * self.cie.data_align, None)
            return position
        operand, position = uleb128(code, position)
        if opcode == 0x2E:  # DW_CFA_GNU_args_size concerns only landing pads
            return position
        if opcode in (0x0C, 0x0D, 0x12):
            return self._define_cfa(opcode, operand, code, position)
        return self._register_rule(opcode, operand, code, position)

    def _define_cfa(self, opcode: int, operand: int, code: bytes, position: int) -> int:
        if opcode == 0x0C:  # DW_CFA_def_cfa
            offset, position = uleb128(code, position)
            self.cfa = (operand, offset, None)
        elif opcode == 0x12:  # DW_CFA_def_cfa_sf
            factor, position = sleb128(code, position)
            self.cfa = (operand, factor * self.cie.data_align, None)
        else:  # DW_CFA_def_cfa_register
            self.cfa = (operand, self.cfa[1], None)
        return position

    def _register_rule(self, opcode: int, register: int, code: bytes, position: int) -> int:
        if opcode == 0x06:  # DW_CFA_restore_extended
            self._restore(register)
        elif opcode == 0x07:  # DW_CFA_undefined
            self.rules[register] = Rule(UNDEFINED)
        elif opcode == 0x08:  # DW_CFA_same_value
            self.rules[register] = Rule(SAME)
        elif opcode in (0x10, 0x16):  # DW_CFA_expression, DW_CFA_val_expression
            block, position = _block(code, position)
            self.rules[register] = Rule(EXPRESSION if opcode == 0x10 else VAL_EXPRESSION, 0, block)
        elif opcode in (0x05, 0x14):  # DW_CFA_offset_extended, DW_CFA_val_offset
            factor, position = uleb128(code, position)
            self.rules[register] = Rule(OFFSET if opcode == 0x05 else VAL_OFFSET, factor * self.cie.data_align)
        elif opcode in (0x11, 0x15):  # DW_CFA_offset_extended_sf, DW_CFA_val_offset_sf
            factor, position = sleb128(code, position)
            self.rules[register] = Rule(OFFSET if opcode == 0x11 else VAL_OFFSET, factor * self.cie.data_align)
        elif opcode == 0x2F:  # DW_CFA_GNU_negative_offset_extended
            factor, position = uleb128(code, position)
            self.rules[register] = Rule(OFFSET, -factor * self.cie.data_align)
        elif opcode == 0x09:  # DW_CFA_register
            other, position = uleb128(code, position)
            self.rules[register] = Rule(REGISTER, other)
        else:
            raise BadData(f"unknown call frame instruction {opcode:#x}")
        return position


def _block(code: bytes, position: int) -> tuple[bytes, int]:
    size, position = uleb128(code, position)
    if position + size > len(code):
        raise BadData("call frame expression is cut short")
    return code[position : position + size], position + size


def row_at(fde: Fde, vaddr: int) -> CfiRow:
    """The row of ``fde`` that holds at ``vaddr``. Raises BadData for a damaged program."""
    cie = fde.cie
    program = _Program(cie, 0, 0)
    program.run(cie.instructions)
    program.initial = dict(program.rules)
    program.location = fde.start
    program.wanted = vaddr
    program.run(fde.instructions)
    register, offset, code = program.cfa
    return CfiRow(register, offset, code, program.rules, cie.return_register, cie.is_signal)
