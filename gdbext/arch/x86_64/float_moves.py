"""Instructions that move floating-point numbers about, and which vector registers an instruction may change.

From the operand columns of the Intel SDM, volume 2. Only the legacy SSE encodings are followed: they are what compilers
emit for code that runs on every x86-64; what AVX instructions change is known, not what they move.
"""

from __future__ import annotations

from collections.abc import Collection

from gdbext.arch.instruction import NOTHING
from gdbext.arch.x86_64.effects import ModRM
from gdbext.arch.x86_64.registers import BY_ENCODING as REGISTERS
from gdbext.arch.x86_64.registers import FLOATS
from gdbext.model.record import Record

_ONE = tuple(frozenset((name,)) for name in FLOATS)
ALL_FLOATS = frozenset(FLOATS)
_DOUBLE, _PACKED = 8, 16


class FloatMove(Record):
    """What an instruction does: ``kind`` "fmov", "fzero" or "other"; a side that is None is the memory operand."""

    kind: str
    destination: str | None
    source: str | None
    stored: int
    """Bytes of the memory operand that it writes."""


def float_move(opcode: int, prefixes: Collection[int], rex: int, modrm: ModRM) -> FloatMove | None:
    """Of an opcode of map 0F; None for one that is none."""
    reg = FLOATS[modrm.reg]
    if opcode in (0x57, 0xEF) and modrm.mod == 3 and modrm.rm == modrm.reg:  # xorps, xorpd, pxor
        return FloatMove("fzero", reg, None, 0) if opcode == 0x57 or 0x66 in prefixes else None
    if opcode in (0x6E, 0x7E) and 0x66 in prefixes and rex & 8:  # movq with a general register, or memory
        other = REGISTERS[modrm.rm] if modrm.mod == 3 else None
        return _move(opcode == 0x7E, reg, other, _DOUBLE)
    size = _vector_size(opcode, prefixes, modrm)
    if not size:
        return None
    return _move(opcode in (0x11, 0x13, 0x29, 0x7F, 0xD6), reg, FLOATS[modrm.rm] if modrm.mod == 3 else None, size)


def _move(stores: bool, reg: str, other: str | None, size: int) -> FloatMove:
    if not stores:
        return FloatMove("fmov", reg, other, 0)
    return FloatMove("fmov", other, reg, 0 if other else size)


def _vector_size(opcode: int, prefixes: Collection[int], modrm: ModRM) -> int:
    """Bytes that a move between vector registers and memory takes; 0 for anything else."""
    if opcode in (0x10, 0x11):  # movups, movupd, movss, movsd
        return 4 if 0xF3 in prefixes else _DOUBLE if 0xF2 in prefixes else _PACKED
    if opcode in (0x12, 0x13):  # movlpd; movlps between registers is movhlps
        return _DOUBLE if modrm.mod != 3 and not {0xF2, 0xF3} & set(prefixes) else 0
    if opcode in (0x28, 0x29):  # movaps, movapd
        return _PACKED
    if opcode in (0x6F, 0x7F):  # movdqa, movdqu; movq of MMX
        return _PACKED if 0x66 in prefixes or 0xF3 in prefixes else 0
    if opcode == 0x7E:
        return _DOUBLE if 0xF3 in prefixes else 0
    return _DOUBLE if opcode == 0xD6 and 0x66 in prefixes else 0


_NONE_0F = frozenset((0x2C, 0x2D, 0x2E, 0x2F, 0x50, 0xC3, 0xC7, *range(0x18, 0x28), *range(0x90, 0xC2),
                      *range(0x40, 0x50), *range(0x10)))  # fmt: skip
"""Opcodes of map 0F that change no vector register: conversions to general ones, comparisons, what is no vector's."""


def float_writes_0f(opcode: int, modrm: ModRM) -> frozenset[str]:
    """Vector registers that an opcode of map 0F with ModRM may change: more of them where that is simpler."""
    if opcode == 0xAE:
        return ALL_FLOATS if modrm.reg & 7 in (1, 5) else NOTHING  # fxrstor, xrstor
    return NOTHING if opcode in _NONE_0F else float_writes(modrm)


def float_writes(modrm: ModRM, third: int | None = None) -> frozenset[str]:
    """Those that an instruction names, one of which it changes; ``third``: the one in a vvvv field."""
    found = _ONE[modrm.reg]
    if modrm.mod == 3:
        found = found | _ONE[modrm.rm]
    return found if third is None else found | _ONE[third]
