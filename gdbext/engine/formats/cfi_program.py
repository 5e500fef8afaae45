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
    """An interpreter of call frame programs: it runs until the next row would begin behind the address ``wanted``."""

    def __init__(self, cie: Cie) -> None:
        self.cie = cie
        self.location = self.wanted = 0  # the address at which the current row begins, the one whose row is wanted
        self.cfa: tuple[int, int, bytes | None] = (-1, 0, None)  # (register, offset, None), or (-1, 0, expression)
        self.rules: dict[int, Rule] = {}  # DWARF number of a register → its rule
        self.initial: dict[int, Rule] = {}  # the rules at the end of the CIE's program
        self.remembered: list[tuple[tuple[int, int, bytes | None], dict[int, Rule]]] = []

    def run(self, code: bytes) -> None:
        """Execute ``code``, the instructions of a CIE or an FDE. Raises BadData if they are damaged."""
        position = 0
        while position < len(code) and self.location <= self.wanted:
            opcode = code[position]
            position += 1
            primary, low_bits = opcode & 0xC0, opcode & 0x3F
            if primary == 0x40:  # DW_CFA_advance_loc
                self.advance(low_bits)
            elif primary == 0x80:  # DW_CFA_offset
                factor, position = uleb128(code, position)
                self.rules[low_bits] = Rule(OFFSET, factor * self.cie.data_align)
            elif primary == 0xC0:  # DW_CFA_restore
                self.restore(low_bits)
            elif opcode in _INSTRUCTIONS:
                forms, execute = _INSTRUCTIONS[opcode]
                operands = []
                for form in forms:
                    operand, position = self._operand(form, code, position)
                    operands.append(operand)
                execute(self, *operands)
            else:  # also DW_CFA_set_loc (1), which no compiler emits
                raise BadData(f"unknown call frame instruction {opcode:#x}")

    def _operand(self, form: str, code: bytes, position: int) -> tuple[int | bytes, int]:
        """The operand of that form (see _INSTRUCTIONS) at ``position``, and the position behind it."""
        if form.isdigit():
            end = position + int(form)
            return int.from_bytes(code[position:end], "little"), end
        number, position = sleb128(code, position) if form == "s" else uleb128(code, position)
        if form != "b":
            return (number if form == "u" else number * self.cie.data_align), position
        if position + number > len(code):
            raise BadData("call frame expression is cut short")
        return code[position : position + number], position + number

    def advance(self, delta: int) -> None:
        self.location += delta * self.cie.code_align

    def restore(self, register: int) -> None:
        """Give a register the rule that the CIE's program gave it, or none."""
        if register in self.initial:
            self.rules[register] = self.initial[register]
        else:
            self.rules.pop(register, None)

    def set_cfa(self, register: int, offset: int, expression: bytes | None = None) -> None:
        self.cfa = (register, offset, expression)

    def set_rule(self, register: int, kind: int, number: int = 0, code: bytes = b"") -> None:
        self.rules[register] = Rule(kind, number, code)

    def remember_state(self) -> None:
        """Push the row for DW_CFA_restore_state. Raises BadData if the stack of rows is too deep."""
        if len(self.remembered) >= MAX_REMEMBERED:
            raise BadData("DW_CFA_remember_state without end")
        self.remembered.append((self.cfa, dict(self.rules)))

    def restore_state(self) -> None:
        """Return to the row that was remembered last. Raises BadData if there is none."""
        if not self.remembered:
            raise BadData("DW_CFA_restore_state without DW_CFA_remember_state")
        self.cfa, self.rules = self.remembered.pop()


_INSTRUCTIONS: Mapping[int, tuple[str, Callable[..., None]]] = {
    0x00: ("", lambda *_: None),  # DW_CFA_nop
    0x02: ("1", _Program.advance),  # DW_CFA_advance_loc1, _loc2, _loc4, DW_CFA_MIPS_advance_loc8
    0x03: ("2", _Program.advance),
    0x04: ("4", _Program.advance),
    0x1D: ("8", _Program.advance),
    0x05: ("uf", lambda program, register, offset: program.set_rule(register, OFFSET, offset)),
    0x06: ("u", _Program.restore),
    0x07: ("u", lambda program, register: program.set_rule(register, UNDEFINED)),
    0x08: ("u", lambda program, register: program.set_rule(register, SAME)),
    0x09: ("uu", lambda program, register, source: program.set_rule(register, REGISTER, source)),
    0x0A: ("", _Program.remember_state),
    0x0B: ("", _Program.restore_state),
    0x0C: ("uu", _Program.set_cfa),  # DW_CFA_def_cfa, _register, _offset, _expression
    0x0D: ("u", lambda program, register: program.set_cfa(register, program.cfa[1])),
    0x0E: ("u", lambda program, offset: program.set_cfa(program.cfa[0], offset)),
    0x0F: ("b", lambda program, code: program.set_cfa(-1, 0, code)),
    0x10: ("ub", lambda program, register, code: program.set_rule(register, EXPRESSION, 0, code)),
    0x11: ("us", lambda program, register, offset: program.set_rule(register, OFFSET, offset)),
    0x12: ("us", _Program.set_cfa),  # DW_CFA_def_cfa_sf, DW_CFA_def_cfa_offset_sf
    0x13: ("s", lambda program, offset: program.set_cfa(program.cfa[0], offset)),
    0x14: ("uf", lambda program, register, offset: program.set_rule(register, VAL_OFFSET, offset)),
    0x15: ("us", lambda program, register, offset: program.set_rule(register, VAL_OFFSET, offset)),
    0x16: ("ub", lambda program, register, code: program.set_rule(register, VAL_EXPRESSION, 0, code)),
    0x2E: ("u", lambda *_: None),  # DW_CFA_GNU_args_size, which matters to landing pads only
    0x2F: ("uf", lambda program, register, offset: program.set_rule(register, OFFSET, -offset)),  # of old GCCs
}
"""Opcode of a DW_CFA instruction → the forms of its operands, and its effect. Forms: a number of 1, 2, 4 or 8 bytes,
ULEB128 ("u"), ULEB128 or SLEB128 in units of the CIE's data alignment ("f", "s"), an expression ("b")."""


def row_at(fde: Fde, vaddr: int) -> CfiRow:
    """The row of ``fde`` for ``vaddr``. Raises BadData for a damaged program."""
    cie = fde.cie
    program = _Program(cie)
    program.run(cie.instructions)
    program.initial = dict(program.rules)
    program.location, program.wanted = fde.start, vaddr
    program.run(fde.instructions)
    register, offset, code = program.cfa
    return CfiRow(register, offset, code, program.rules, cie.return_register, cie.is_signal)


MASK = (1 << 64) - 1
MAX_STEPS = 4096  # operations after which an expression counts as endless (DW_OP_skip may jump backward)
MAX_DEPTH = 256
Dereference = Callable[[int, int], int]  # (address, size) → the unsigned little-endian number there; raises MemoryFault


def _signed(value: int) -> int:
    """The signed number with the same 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def _nonzero(divisor: int) -> int:
    if divisor == 0:
        raise BadData("DWARF expression divides by zero")
    return divisor


def _divide(dividend: int, divisor: int) -> int:
    """The signed quotient, rounded towards zero."""
    quotient = abs(_signed(dividend)) // abs(_signed(_nonzero(divisor)))
    return quotient if (_signed(dividend) < 0) == (_signed(divisor) < 0) else -quotient


_STACK_OPERATIONS: Mapping[int, tuple[int, Callable[..., tuple[int, ...]]]] = {
    0x12: (1, lambda top: (top, top)),  # DW_OP_dup
    0x13: (1, lambda *_: ()),  # DW_OP_drop
    0x14: (2, lambda a, b: (a, b, a)),  # DW_OP_over
    0x16: (2, lambda a, b: (b, a)),  # DW_OP_swap
    0x17: (3, lambda a, b, c: (c, a, b)),  # DW_OP_rot
    0x19: (1, lambda a: (abs(_signed(a)),)),  # DW_OP_abs … DW_OP_xor
    0x1A: (2, lambda a, b: (a & b,)),
    0x1B: (2, lambda a, b: (_divide(a, b),)),
    0x1C: (2, lambda a, b: (a - b,)),
    0x1D: (2, lambda a, b: (a % _nonzero(b),)),
    0x1E: (2, lambda a, b: (a * b,)),
    0x1F: (1, lambda a: (-a,)),
    0x20: (1, lambda a: (~a,)),
    0x21: (2, lambda a, b: (a | b,)),
    0x22: (2, lambda a, b: (a + b,)),
    0x24: (2, lambda a, b: (a << b if b < 64 else 0,)),
    0x25: (2, lambda a, b: (a >> b if b < 64 else 0,)),
    0x26: (2, lambda a, b: (_signed(a) >> min(b, 63),)),
    0x27: (2, lambda a, b: (a ^ b,)),
    0x29: (2, lambda a, b: (a == b,)),  # DW_OP_eq … DW_OP_ne
    0x2A: (2, lambda a, b: (_signed(a) >= _signed(b),)),
    0x2B: (2, lambda a, b: (_signed(a) > _signed(b),)),
    0x2C: (2, lambda a, b: (_signed(a) <= _signed(b),)),
    0x2D: (2, lambda a, b: (_signed(a) < _signed(b),)),
    0x2E: (2, lambda a, b: (a != b,)),
    0x96: (0, lambda: ()),  # DW_OP_nop
}
"""DW_OP operation without operands → the number of values that it takes from the stack, and a function from these (the
top is the last) to the values that it leaves there, which the caller truncates to 64 bits."""
_CONSTANTS = {0x03: (8, False), **{0x08 + index: (1 << index // 2, index % 2 == 1) for index in range(8)}}
"""DW_OP_addr, DW_OP_const1u, DW_OP_const1s … DW_OP_const8s → (bytes of the operand, True if it is signed)."""


DEREF = b"\x06"  # DW_OP_deref


def register_code(number: int) -> bytes:
    """The expression whose value is that of a DWARF register below 32 (DW_OP_bregN 0)."""
    return bytes((0x70 + number, 0))


def sum_code(code: bytes, number: int) -> bytes:
    """The expression whose value is that of ``code`` plus a number (DW_OP_const8s, DW_OP_plus)."""
    return code + b"\x0f" + number.to_bytes(8, "little", signed=True) + b"\x22" if number else code


class _Machine:
    """The interpreter of one expression."""

    def __init__(self, code: bytes, register: Callable[[int], int], read: Dereference, stack: list[int]) -> None:
        """Parameters as of evaluate()."""
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
        """Execute the operation ``opcode``, behind which ``position`` is. Raises BadData, IndexError."""
        stack = self.stack
        if opcode in _STACK_OPERATIONS:
            count, operation = _STACK_OPERATIONS[opcode]
            taken = [stack.pop() for _ in range(count)]
            stack += [value & MASK for value in operation(*reversed(taken))]
        elif 0x30 <= opcode <= 0x4F:  # DW_OP_lit0 … lit31
            stack.append(opcode - 0x30)
        elif 0x70 <= opcode <= 0x8F or opcode == 0x92:  # DW_OP_breg0 … breg31, DW_OP_bregx
            number = self._operand() if opcode == 0x92 else opcode - 0x70
            stack.append((self.register(number) + self._signed_operand()) & MASK)
        elif opcode in _CONSTANTS:
            stack.append(self._fixed(*_CONSTANTS[opcode]) & MASK)
        elif opcode == 0x10:  # DW_OP_constu
            stack.append(self._operand() & MASK)
        elif opcode == 0x11:  # DW_OP_consts
            stack.append(self._signed_operand() & MASK)
        elif opcode == 0x23:  # DW_OP_plus_uconst
            stack.append((stack.pop() + self._operand()) & MASK)
        elif opcode == 0x15:  # DW_OP_pick
            stack.append(stack[-1 - self._fixed(1, signed=False)])
        elif opcode in (0x06, 0x94):  # DW_OP_deref, DW_OP_deref_size
            size = 8 if opcode == 0x06 else self._fixed(1, signed=False)
            if not 1 <= size <= 8:
                raise BadData(f"DW_OP_deref_size of {size} bytes")
            stack.append(self.read(stack.pop(), size))
        elif opcode in (0x28, 0x2F):  # DW_OP_bra, DW_OP_skip
            offset = self._fixed(2, signed=True)
            if opcode == 0x2F or stack.pop() != 0:
                self.position += offset
                if not 0 <= self.position <= len(self.code):
                    raise BadData("DWARF expression jumps outside itself")
        else:
            raise BadData(f"DWARF operation {opcode:#x} is not allowed in call frame information")

    def _fixed(self, size: int, signed: bool) -> int:
        """Read the operand of ``size`` bytes at ``position``. Raises BadData if the expression ends before."""
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
        raise BadData("DWARF expression underflows its stack") from None
