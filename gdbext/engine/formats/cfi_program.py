"""Runs call frame programs: from CIE and FDE to the row for an address (DWARF 5, 6.4); evaluates expressions (2.5).

Signal trampolines, procedure linkage tables and functions that realign their stack need expressions. Every loop is
bounded, since the bytes may come from a damaged process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gdbext.engine.formats.eh_frame import Cie, Fde, sleb128, uleb128
from gdbext.errors import BadData

UNDEFINED, SAME, OFFSET, VAL_OFFSET, REGISTER, EXPRESSION, VAL_EXPRESSION = range(7)
"""Kinds of register rule (DWARF 5, 6.4.1)."""

MAX_REMEMBERED = 1000  # depth of DW_CFA_remember_state; compilers use one


class Rule(NamedTuple):
    """The rule for the caller's value of a register. ``number`` is an offset or a register, ``code`` an expression."""

    kind: int
    number: int = 0
    code: bytes = b""


class CfiRow(NamedTuple):
    """The unwind rules at one address. The CFA is the value of ``cfa_code``, if that is set, else register + offset."""

    cfa_register: int
    cfa_offset: int
    cfa_code: bytes | None
    rules: dict[int, Rule]
    return_register: int
    is_signal: bool


class _Program:
    """The state of a call frame program, which runs until it passes the address ``wanted``."""

    def __init__(self, cie: Cie, location: int, wanted: int) -> None:
        self.cie = cie
        self.location = location
        self.wanted = wanted
        self.cfa: tuple[int, int, bytes | None] = (-1, 0, None)  # (register, offset, None), or (-1, 0, expression)
        self.rules: dict[int, Rule] = {}  # DWARF number of a register → its rule
        self.initial: dict[int, Rule] = {}  # the rules at the end of the CIE's program
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
            elif opcode in _ADVANCE_SIZES:
                size = _ADVANCE_SIZES[opcode]
                if self._advance(int.from_bytes(code[position : position + size], "little")):
                    return
                position += size
            elif opcode == 0x0A:  # DW_CFA_remember_state
                if len(self.remembered) >= MAX_REMEMBERED:
                    raise BadData("DW_CFA_remember_state without end")
                self.remembered.append((self.cfa, dict(self.rules)))
            elif opcode == 0x0B:  # DW_CFA_restore_state
                if not self.remembered:
                    raise BadData("DW_CFA_restore_state without DW_CFA_remember_state")
                self.cfa, self.rules = self.remembered.pop()
            elif opcode != 0x00:  # DW_CFA_nop
                position = self._run_rare(opcode, code, position)

    def _advance(self, delta: int) -> bool:
        """Advance the location; True if the current row is that of the wanted address."""
        self.location += delta * self.cie.code_align
        return self.location > self.wanted

    def _restore(self, register: int) -> None:
        rule = self.initial.get(register)
        if not rule:
            self.rules.pop(register, None)
        else:
            self.rules[register] = rule

    def _run_rare(self, opcode: int, code: bytes, position: int) -> int:
        """Run a rarer instruction, whose operands are at ``position``; return the position after it."""
        align = self.cie.data_align
        if opcode == 0x01:  # DW_CFA_set_loc: an address, in the FDE's own encoding
            raise BadData("DW_CFA_set_loc, which no compiler emits")
        if opcode == 0x0F:  # DW_CFA_def_cfa_expression
            block, position = _block(code, position)
            self.cfa = (-1, 0, block)
            return position
        if opcode == 0x13:  # DW_CFA_def_cfa_offset_sf
            factor, position = sleb128(code, position)
            self.cfa = (self.cfa[0], factor * align, None)
            return position
        register, position = uleb128(code, position)
        if opcode == 0x2E:  # DW_CFA_GNU_args_size concerns only landing pads
            pass
        elif opcode == 0x0C:  # DW_CFA_def_cfa
            offset, position = uleb128(code, position)
            self.cfa = (register, offset, None)
        elif opcode == 0x12:  # DW_CFA_def_cfa_sf
            factor, position = sleb128(code, position)
            self.cfa = (register, factor * align, None)
        elif opcode == 0x0D:  # DW_CFA_def_cfa_register
            self.cfa = (register, self.cfa[1], None)
        elif opcode == 0x06:  # DW_CFA_restore_extended
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
            self.rules[register] = Rule(OFFSET if opcode == 0x05 else VAL_OFFSET, factor * align)
        elif opcode in (0x11, 0x15):  # DW_CFA_offset_extended_sf, DW_CFA_val_offset_sf
            factor, position = sleb128(code, position)
            self.rules[register] = Rule(OFFSET if opcode == 0x11 else VAL_OFFSET, factor * align)
        elif opcode == 0x2F:  # DW_CFA_GNU_negative_offset_extended
            factor, position = uleb128(code, position)
            self.rules[register] = Rule(OFFSET, -factor * align)
        elif opcode == 0x09:  # DW_CFA_register
            source, position = uleb128(code, position)
            self.rules[register] = Rule(REGISTER, source)
        else:
            raise BadData(f"unknown call frame instruction {opcode:#x}")
        return position


_ADVANCE_SIZES = {0x02: 1, 0x03: 2, 0x04: 4, 0x1D: 8}
"""DW_CFA_advance_loc1, advance_loc2, advance_loc4, MIPS_advance_loc8: bytes of the operand."""


def _block(code: bytes, position: int) -> tuple[bytes, int]:
    """The expression at ``position``, behind its size, and the position after it. Raises BadData."""
    size, position = uleb128(code, position)
    if position + size > len(code):
        raise BadData("call frame expression is cut short")
    return code[position : position + size], position + size


def row_at(fde: Fde, vaddr: int) -> CfiRow:
    """The row of ``fde`` for ``vaddr``. Raises BadData for a damaged program."""
    cie = fde.cie
    program = _Program(cie, 0, 0)
    program.run(cie.instructions)
    program.initial = dict(program.rules)
    program.location = fde.start
    program.wanted = vaddr
    program.run(fde.instructions)
    register, offset, code = program.cfa
    return CfiRow(register, offset, code, program.rules, cie.return_register, cie.is_signal)


MASK = (1 << 64) - 1
MAX_STEPS = 4096  # operations after which an expression counts as endless (DW_OP_skip may jump backward)
MAX_DEPTH = 256
Dereference = Callable[[int, int], int]  # (address, size) → the unsigned little-endian number there; raises MemoryFault


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _nonzero(divisor: int) -> int:
    if divisor == 0:
        raise BadData("DWARF expression divides by zero")
    return divisor


def _divide(dividend: int, divisor: int) -> int:
    """The signed quotient, rounded towards zero."""
    quotient = abs(_signed(dividend)) // abs(_signed(_nonzero(divisor)))
    return quotient if (_signed(dividend) < 0) == (_signed(divisor) < 0) else -quotient


_BINARY: Mapping[int, Callable[[int, int], int]] = {
    0x1A: lambda a, b: a & b,
    0x1B: _divide,
    0x1C: lambda a, b: a - b,
    0x1D: lambda a, b: a % _nonzero(b),
    0x1E: lambda a, b: a * b,
    0x21: lambda a, b: a | b,
    0x22: lambda a, b: a + b,
    0x24: lambda a, b: a << b if b < 64 else 0,
    0x25: lambda a, b: a >> b if b < 64 else 0,
    0x26: lambda a, b: _signed(a) >> min(b, 63),
    0x27: lambda a, b: a ^ b,
    0x29: lambda a, b: int(a == b),
    0x2A: lambda a, b: int(_signed(a) >= _signed(b)),
    0x2B: lambda a, b: int(_signed(a) > _signed(b)),
    0x2C: lambda a, b: int(_signed(a) <= _signed(b)),
    0x2D: lambda a, b: int(_signed(a) < _signed(b)),
    0x2E: lambda a, b: int(a != b),
}
"""DW_OP_and 0x1a … DW_OP_ne 0x2e: (second, top) → the result, which the caller truncates to 64 bits."""
_UNARY: Mapping[int, Callable[[int], int]] = {0x19: lambda a: abs(_signed(a)), 0x1F: lambda a: -a, 0x20: lambda a: ~a}
"""Operations DW_OP_abs, DW_OP_neg, DW_OP_not on one value."""
_CONSTANTS: Mapping[int, tuple[int, bool]] = {
    0x03: (8, False),
    0x08: (1, False),
    0x09: (1, True),
    0x0A: (2, False),
    0x0B: (2, True),
    0x0C: (4, False),
    0x0D: (4, True),
    0x0E: (8, False),
    0x0F: (8, True),
}
"""DW_OP_addr, DW_OP_const1u … DW_OP_const8s: size and signedness of the operand."""


class _Machine:
    """The interpreter of one expression."""

    def __init__(self, code: bytes, register: Callable[[int], int], read: Dereference, stack: list[int]) -> None:
        self.code = code
        self.position = 0
        self.stack = stack
        self.register = register
        self.read = read

    def run(self) -> int:
        """The top of the stack at the end. Raises BadData, IndexError."""
        steps = 0
        while self.position < len(self.code):
            steps += 1
            if steps > MAX_STEPS or len(self.stack) > MAX_DEPTH:
                raise BadData("DWARF expression does not end")
            opcode = self.code[self.position]
            self.position += 1
            self._execute(opcode)
        return self.stack[-1]

    def _execute(self, opcode: int) -> None:
        stack = self.stack
        if opcode in _BINARY:
            top = stack.pop()
            stack.append(_BINARY[opcode](stack.pop(), top) & MASK)
        elif 0x30 <= opcode <= 0x4F:  # DW_OP_lit0 … lit31
            stack.append(opcode - 0x30)
        elif 0x70 <= opcode <= 0x8F or opcode == 0x92:  # DW_OP_breg0 … breg31, DW_OP_bregx
            number = self._operand() if opcode == 0x92 else opcode - 0x70
            stack.append((self.register(number) + self._signed_operand()) & MASK)
        elif opcode in _CONSTANTS:
            stack.append(self._fixed(*_CONSTANTS[opcode]) & MASK)
        elif opcode in _UNARY:
            stack.append(_UNARY[opcode](stack.pop()) & MASK)
        elif opcode in (0x06, 0x94):  # DW_OP_deref, DW_OP_deref_size
            size = 8 if opcode == 0x06 else self._fixed(1, False)
            if not 1 <= size <= 8:
                raise BadData(f"DW_OP_deref_size of {size} bytes")
            stack.append(self.read(stack.pop(), size))
        elif opcode == 0x23:  # DW_OP_plus_uconst
            stack.append((stack.pop() + self._operand()) & MASK)
        elif opcode == 0x10:  # DW_OP_constu
            stack.append(self._operand() & MASK)
        elif opcode == 0x11:  # DW_OP_consts
            stack.append(self._signed_operand() & MASK)
        elif opcode in (0x28, 0x2F):  # DW_OP_bra, DW_OP_skip
            offset = self._fixed(2, True)
            if opcode == 0x2F or stack.pop() != 0:
                self.position += offset
                if not 0 <= self.position <= len(self.code):
                    raise BadData("DWARF expression jumps out of itself")
        elif opcode == 0x12:  # DW_OP_dup
            stack.append(stack[-1])
        elif opcode == 0x13:  # DW_OP_drop
            stack.pop()
        elif opcode == 0x14:  # DW_OP_over
            stack.append(stack[-2])
        elif opcode == 0x15:  # DW_OP_pick
            stack.append(stack[-1 - self._fixed(1, False)])
        elif opcode == 0x16:  # DW_OP_swap
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif opcode == 0x17:  # DW_OP_rot: the top goes below the next two
            stack[-3:] = [stack[-1], stack[-3], stack[-2]]
        elif opcode != 0x96:  # DW_OP_nop
            raise BadData(f"DWARF operation {opcode:#x} has no place in call frame information")

    def _fixed(self, size: int, signed: bool) -> int:
        """Read an operand of ``size`` bytes."""
        data = self.code[self.position : self.position + size]
        if len(data) < size:
            raise BadData("DWARF expression is cut short")
        self.position += size
        return int.from_bytes(data, "little", signed=signed)

    def _operand(self) -> int:
        value, self.position = uleb128(self.code, self.position)
        return value

    def _signed_operand(self) -> int:
        value, self.position = sleb128(self.code, self.position)
        return value


def evaluate(code: bytes, register: Callable[[int], int], read: Dereference, initial: tuple[int, ...] = ()) -> int:
    """The unsigned 64-bit value of the expression ``code``.

    ``register`` gives the value of a DWARF register number, ``initial`` is the stack at the start (the CFA, for
    register rules). Raises BadData for a malformed expression, and what ``register`` and ``read`` raise.
    """
    try:
        return _Machine(code, register, read, list(initial)).run()
    except IndexError:
        raise BadData("DWARF expression takes more from its stack than there is") from None
