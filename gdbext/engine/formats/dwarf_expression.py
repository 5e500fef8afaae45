"""DWARF expressions as call frame information uses them (DWARF 5, section 2.5).

CFI needs them seldom: signal trampolines, procedure linkage tables and functions that realign their stack. They are
therefore interpreted where they stand, with every loop bounded, since the bytes may come from a damaged process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gdbext.engine.formats.eh_frame import sleb128, uleb128
from gdbext.errors import BadData

MASK = (1 << 64) - 1
MAX_STEPS = 4096
"""Operations after which an expression counts as endless (DW_OP_skip may go backwards)."""
MAX_DEPTH = 256

Dereference = Callable[[int, int], int]
"""(address, size) to the unsigned little-endian number there; raises MemoryFault."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _divide(a: int, b: int) -> int:
    if b == 0:
        raise BadData("DWARF expression divides by zero")
    quotient = abs(_signed(a)) // abs(_signed(b))
    return quotient if (_signed(a) < 0) == (_signed(b) < 0) else -quotient


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise BadData("DWARF expression divides by zero")
    return a % b


_BINARY: Mapping[int, Callable[[int, int], int]] = {
    0x1A: lambda a, b: a & b,
    0x1B: _divide,
    0x1C: lambda a, b: a - b,
    0x1D: _modulo,
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
"""DW_OP_and 0x1a … DW_OP_ne 0x2e: (second, top) to the result, cut to 64 bits by the caller."""

_UNARY: Mapping[int, Callable[[int], int]] = {
    0x19: lambda a: abs(_signed(a)),
    0x1F: lambda a: -a,
    0x20: lambda a: ~a,
}
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
    """The stack and the position in one expression."""

    def __init__(self, code: bytes, registers: Callable[[int], int], read: Dereference, stack: list[int]) -> None:
        self.code = code
        self.position = 0
        self.stack = stack
        self.register = registers
        self.read = read

    def run(self) -> int:
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
        push = self.stack.append
        if opcode in _BINARY:
            top = self.stack.pop()
            push(_BINARY[opcode](self.stack.pop(), top) & MASK)
        elif 0x30 <= opcode <= 0x4F:  # DW_OP_lit0 … lit31
            push(opcode - 0x30)
        elif 0x70 <= opcode <= 0x8F:  # DW_OP_breg0 … breg31
            push((self.register(opcode - 0x70) + self._sleb()) & MASK)
        elif opcode in _CONSTANTS:
            size, signed = _CONSTANTS[opcode]
            push(self._fixed(size, signed) & MASK)
        elif opcode in _UNARY:
            push(_UNARY[opcode](self.stack.pop()) & MASK)
        else:
            self._execute_rest(opcode)

    def _execute_rest(self, opcode: int) -> None:
        stack = self.stack
        if opcode == 0x06:  # DW_OP_deref
            stack.append(self.read(stack.pop(), 8))
        elif opcode == 0x94:  # DW_OP_deref_size
            size = self._fixed(1, False)
            if not 1 <= size <= 8:
                raise BadData(f"DW_OP_deref_size of {size} bytes")
            stack.append(self.read(stack.pop(), size))
        elif opcode == 0x23:  # DW_OP_plus_uconst
            stack.append((stack.pop() + self._uleb()) & MASK)
        elif opcode == 0x10:  # DW_OP_constu
            stack.append(self._uleb() & MASK)
        elif opcode == 0x11:  # DW_OP_consts
            stack.append(self._sleb() & MASK)
        elif opcode == 0x92:  # DW_OP_bregx
            number = self._uleb()
            stack.append((self.register(number) + self._sleb()) & MASK)
        elif opcode in (0x28, 0x2F):  # DW_OP_bra, DW_OP_skip
            self._jump(opcode == 0x2F)
        elif opcode != 0x96:  # DW_OP_nop
            self._shuffle(opcode)

    def _shuffle(self, opcode: int) -> None:
        stack = self.stack
        if opcode == 0x12:  # DW_OP_dup
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
        else:
            raise BadData(f"DWARF operation {opcode:#x} has no place in call frame information")

    def _jump(self, always: bool) -> None:
        offset = self._fixed(2, True)
        if always or self.stack.pop() != 0:
            self.position += offset
            if not 0 <= self.position <= len(self.code):
                raise BadData("DWARF expression jumps out of itself")

    def _fixed(self, size: int, signed: bool) -> int:
        data = self.code[self.position : self.position + size]
        if len(data) < size:
            raise BadData("DWARF expression is cut short")
        self.position += size
        return int.from_bytes(data, "little", signed=signed)

    def _uleb(self) -> int:
        value, self.position = uleb128(self.code, self.position)
        return value

    def _sleb(self) -> int:
        value, self.position = sleb128(self.code, self.position)
        return value


def evaluate(code: bytes, register: Callable[[int], int], read: Dereference, initial: tuple[int, ...] = ()) -> int:
    """The unsigned 64-bit value of the expression ``code``.

    ``register`` gives the value of a DWARF register number (and raises what the caller likes where it is unknown),
    ``read`` dereferences, ``initial`` is on the stack at the start (the CFA, for register rules).
    Raises BadData for a malformed expression, and what ``register`` and ``read`` raise.
    """
    try:
        return _Machine(code, register, read, list(initial)).run()
    except IndexError:
        raise BadData("DWARF expression takes more from its stack than there is") from None
