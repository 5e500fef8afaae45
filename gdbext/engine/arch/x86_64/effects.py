"""The effects of an instruction: the general and vector registers that it may write, and how many bytes of memory.

They err on the side of more: a search that follows a value through code must never miss a write. Source: the operand
columns of the Intel SDM, volume 2, without instructions for operating systems. Moves of floating-point numbers are
recognized in the legacy SSE encodings only: compilers emit them for code that runs everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch.instruction import NOTHING, MemoryOperand
from gdbext.engine.arch.x86_64.conventions import BY_ENCODING as REGISTERS
from gdbext.engine.arch.x86_64.conventions import FLOATS

if TYPE_CHECKING:
    from collections.abc import Collection

ANY_SIZE = 1 << 20  # bytes written by instructions that save processor state, or that write outside the operand, too
_VECTOR = 64  # bytes of the widest vector store


class ModRM(NamedTuple):
    """The operands that a ModRM byte names: ``reg`` and ``rm`` are register numbers, ``memory`` is None if mod is 3;
    ``size`` is the number of bytes with SIB and displacement."""

    mod: int
    reg: int
    rm: int
    size: int
    memory: MemoryOperand | None


class Effects(NamedTuple):
    """``writes``: general registers that may change; ``stored``: bytes of the memory operand that may change."""

    writes: frozenset[str] = NOTHING
    stored: int = 0


NO_EFFECT = Effects()


def _names(*names: str) -> frozenset[str]:
    return frozenset(names)


def _writes_rm(modrm: ModRM, size: int = 8) -> Effects:
    """The instruction writes the operand ModRM.rm: a register, or ``size`` bytes of memory."""
    return Effects(_names(REGISTERS[modrm.rm])) if modrm.mod == 3 else Effects(NOTHING, size)


def _writes_reg(modrm: ModRM) -> Effects:
    return Effects(_names(REGISTERS[modrm.reg]))


def _writes_both(modrm: ModRM, size: int = 8) -> Effects:
    """The instruction writes the operands ModRM.reg and ModRM.rm."""
    rm = _writes_rm(modrm, size)
    return Effects(rm.writes | {REGISTERS[modrm.reg]}, rm.stored)


def byte_register(number: int, rex: int) -> int:
    """The number of the register that 8-bit operand ``number`` is part of: without REX, 4 to 7 are ah, ch, dh, bh."""
    return number & 3 if 4 <= number < 8 and not rex else number


def _with_byte_registers(modrm: ModRM, rex: int) -> ModRM:
    """``modrm`` of an instruction with 8-bit operands, with the numbers of the registers that contain them."""
    rm = byte_register(modrm.rm, rex) if modrm.mod == 3 else modrm.rm
    return modrm._replace(reg=byte_register(modrm.reg, rex), rm=rm)


_RAX = _names("rax")
_PLAIN = {
    **dict.fromkeys(bytes.fromhex("98 9f d7 a0 a1 e4 e5 ec ed 04 05 0c 0d 14 15 1c 1d 24 25 2c 2d 34 35"), _RAX),
    **dict.fromkeys(bytes.fromhex("6c 6d 6e 6f a4 a5 a6 a7 aa ab ac ad ae af"), _names("rsi", "rdi", "rcx", "rax")),
    0x99: _names("rdx"),
    0x9C: _names("rsp"),
    0x9D: _names("rsp"),
    0xC8: _names("rsp", "rbp"),
}
"""One-byte opcodes without ModRM → registers that they write."""


def plain(opcode: int, rex: int) -> Effects:
    """The effects of a one-byte opcode without ModRM that is no move, push, pop, call or jump."""
    if 0xB0 <= opcode <= 0xB7:
        return Effects(_names(REGISTERS[byte_register((opcode & 7) | (rex & 1) << 3, rex)]))
    if 0x90 <= opcode <= 0x97:
        register = REGISTERS[(opcode & 7) | (rex & 1) << 3]
        return NO_EFFECT if register == "rax" else Effects(_names("rax", register))
    stores = opcode in {0xA2, 0xA3, 0xA4, 0xA5, 0xAA, 0xAB, 0x6C, 0x6D, 0xC8}
    return Effects(_PLAIN.get(opcode, NOTHING), ANY_SIZE if stores else 0)


_X87_LOADS = {
    **dict.fromkeys((0xD8, 0xDA, 0xDC, 0xDE), range(8)),
    **dict.fromkeys((0xD9, 0xDF), (0, 4, 5)),
    0xDB: (0, 5),
    0xDD: (0, 4),
}
"""Opcode → ModRM.reg of the x87 operations that only read their memory operand."""
_BYTE_OPERANDS = frozenset((*range(0, 0x40, 2), *bytes.fromhex("80 84 86 88 8a c0 c6 d0 d2 f6 fe")))


def with_modrm(opcode: int, rex: int, modrm: ModRM) -> Effects:
    """The effects of a one-byte opcode with ModRM."""
    operation = modrm.reg & 7
    if opcode in _BYTE_OPERANDS:
        modrm = _with_byte_registers(modrm, rex)
    if opcode < 0x40:
        if opcode >= 0x38:
            return NO_EFFECT  # cmp
        return _writes_reg(modrm) if opcode & 2 else _writes_rm(modrm)
    if 0xD8 <= opcode <= 0xDF:  # x87
        if modrm.mod == 3:
            return Effects(_RAX) if opcode == 0xDF and operation == 4 else NO_EFFECT  # fnstsw %ax
        return NO_EFFECT if operation in _X87_LOADS[opcode] else Effects(NOTHING, 128)
    if opcode in (0x84, 0x85, 0x8E):
        return NO_EFFECT  # test, mov to a segment register
    if opcode in (0x80, 0x81, 0x83):
        return NO_EFFECT if operation == 7 else _writes_rm(modrm)
    if opcode in (0xF6, 0xF7):
        if operation < 2:
            return NO_EFFECT
        return _writes_rm(modrm) if operation < 4 else Effects(_names("rax", "rdx"))
    if opcode in (0x86, 0x87):
        return _writes_both(modrm)
    if opcode in (0x63, 0x69, 0x6B, 0x8A, 0x8B, 0x8D):
        return _writes_reg(modrm)
    return _writes_rm(modrm)


_REG_0F = frozenset((*range(0x40, 0x50), *bytes.fromhex("02 03 2c 2d 50 af b2 b4 b5 b6 b7 b8 bc bd be bf c5 d7")))
_RM_0F = frozenset((0x00, 0x7E, *range(0x90, 0xA0), 0xA4, 0xA5, 0xAC, 0xAD, 0xC3, 0x20, 0x21))
_VECTOR_STORES_0F = frozenset((0x11, 0x13, 0x17, 0x29, 0x2B, 0x7F, 0xD6, 0xE7, 0xF7))
"""movups, movlps, movhps, movaps, movntps, movdqa, movq, movntdq, maskmovdqu."""
_PLAIN_0F = {
    **dict.fromkeys((0x31, 0x32, 0x33), _names("rax", "rdx")),
    **dict.fromkeys((0xA0, 0xA1, 0xA8, 0xA9), _names("rsp")),
    0x05: _names("rax", "rcx", "r11"),
    0x34: _names("rcx", "r11", "rsp"),
    0x37: frozenset(REGISTERS),
    0xA2: _names("rax", "rbx", "rcx", "rdx"),
}


def plain_0f(opcode: int, rex: int) -> Effects:
    """The effects of an opcode of map 0F without ModRM."""
    if 0xC8 <= opcode <= 0xCF:
        return Effects(_names(REGISTERS[(opcode & 7) | (rex & 1) << 3]))
    return Effects(_PLAIN_0F.get(opcode, NOTHING))


def map_0f(opcode: int, rex: int, modrm: ModRM, repeat: bool) -> Effects:
    """The effects of an opcode of map 0F with ModRM; ``repeat``: with the prefix F3."""
    operation = modrm.reg & 7
    if opcode in _REG_0F:
        return _writes_reg(modrm)
    if opcode == 0x7E and repeat:
        return NO_EFFECT  # movq between vector registers, or a load
    if opcode in _VECTOR_STORES_0F:
        return NO_EFFECT if modrm.mod == 3 else Effects(NOTHING, _VECTOR)
    if 0x90 <= opcode <= 0x9F and modrm.mod == 3:
        return Effects(_names(REGISTERS[byte_register(modrm.rm, rex)]))
    if opcode in _RM_0F:
        return _writes_rm(modrm)
    if opcode in (0xAB, 0xB3, 0xBB) or (opcode == 0xBA and operation > 4):  # bts, btr, btc
        return _writes_rm(modrm, ANY_SIZE)
    if opcode in (0xB0, 0xB1, 0xC0, 0xC1, 0xC7):  # xadd, cmpxchg, cmpxchg16b, xsavec, rdrand
        operands = _with_byte_registers(modrm, rex) if opcode in (0xB0, 0xC0) else modrm
        effects = _writes_both(operands, ANY_SIZE if opcode == 0xC7 else 16)
        return Effects(effects.writes | {"rax", "rdx"}, effects.stored)
    if opcode == 0x01:
        return Effects(_names("rax", "rcx", "rdx", REGISTERS[modrm.rm]), 0 if modrm.mod == 3 else 16)
    if opcode == 0x1E or (opcode == 0xAE and modrm.mod == 3):  # rdssp; rdfsbase, rdgsbase
        return _writes_rm(modrm) if repeat and modrm.mod == 3 and operation < 2 else NO_EFFECT
    if opcode == 0xAE:  # fxsave, xsave and the like; stmxcsr
        return Effects(NOTHING, ANY_SIZE) if operation in (0, 3, 4, 6) else NO_EFFECT
    return NO_EFFECT


_EXTRACTS_0F3A = frozenset((0x14, 0x15, 0x16, 0x17))
_STRING_INDEX_0F3A = frozenset((0x61, 0x63))


def map_0f38(opcode: int, modrm: ModRM) -> Effects:
    """The effects of an opcode of map 0F38: movbe, crc32, adcx, adox, movdiri; others use vectors and read memory."""
    return _writes_both(modrm, _VECTOR) if opcode in {0xF0, 0xF1, 0xF5, 0xF6, 0xF8, 0xF9} else NO_EFFECT


def map_0f3a(opcode: int, modrm: ModRM) -> Effects:
    """The effects of an opcode of map 0F3A: pextr writes general registers or memory, pcmpestri and pcmpistri rcx."""
    if opcode in _STRING_INDEX_0F3A:
        return Effects(_names("rcx"))
    return _writes_rm(modrm) if opcode in _EXTRACTS_0F3A else NO_EFFECT


_VECTOR_GENERAL = frozenset((0x2C, 0x2D, 0x50, 0x78, 0x79, 0x93, 0xC5, 0xD7))
"""cvt(t)s?2si, movmsk, cvtts?2usi, kmov to a register, pextrw, pmovmskb: they write ModRM.reg."""
_VECTOR_STORES = {
    1: _VECTOR_STORES_0F | {0x7E, 0x91, 0xAE},
    2: frozenset(
        (
            *bytes.fromhex("2e 2f 63 8a 8b 8e a0 a1 a2 a3"),
            *(base + low for base in (0x10, 0x20, 0x30) for low in range(6)),
        )
    ),
    3: frozenset((0x14, 0x15, 0x16, 0x17, 0x19, 0x1B, 0x1D, 0x39, 0x3B)),
    5: frozenset((0x11, 0x7E)),
}
"""Number of an opcode map → opcodes that may store under VEX or EVEX (moves, maskmov, narrowing moves, compress,
scatter, extracts, stmxcsr)."""


def vector(opcode_map: int, opcode: int, modrm: ModRM, third: int) -> Effects:
    """The effects of a VEX or EVEX instruction; ``third`` is the number of the register in its vvvv field."""
    if opcode_map == 2 and opcode in (0xF2, 0xF3, 0xF5, 0xF6, 0xF7):  # andn, blsr, bzhi, pdep, mulx, shlx …
        return Effects(_names(REGISTERS[modrm.reg], REGISTERS[third]))
    if (opcode_map == 3 and opcode == 0xF0) or (opcode_map in (1, 5) and opcode in _VECTOR_GENERAL):
        return _writes_reg(modrm)
    if opcode_map == 3 and opcode in _STRING_INDEX_0F3A:
        return Effects(_names("rcx"))
    stores = opcode in _VECTOR_STORES.get(opcode_map, ())
    if modrm.mod != 3:
        size = ANY_SIZE if opcode_map == 2 and 0xA0 <= opcode <= 0xA3 else _VECTOR
        return Effects(NOTHING, size) if stores else NO_EFFECT
    if (opcode_map in (1, 5) and opcode == 0x7E) or (opcode_map == 3 and opcode in _EXTRACTS_0F3A):
        return _writes_rm(modrm)
    return NO_EFFECT


_SINGLE = tuple(frozenset((name,)) for name in FLOATS)
ALL_FLOATS = frozenset(FLOATS)
_DOUBLE, _PACKED = 8, 16


class FloatMove(NamedTuple):
    """A move, with the fields of Instruction: ``kind`` "fmov" or "fzero"; "" as destination or source is the memory
    operand."""

    kind: str
    destination: str
    source: str
    stored: int


def float_move(opcode: int, prefixes: Collection[int], rex: int, modrm: ModRM) -> FloatMove | None:
    """The floating-point move that an opcode of map 0F makes; None if it makes none."""
    reg = FLOATS[modrm.reg]
    if opcode in (0x57, 0xEF) and modrm.mod == 3 and modrm.rm == modrm.reg:  # xorps, xorpd, pxor
        return FloatMove("fzero", reg, "", 0) if opcode == 0x57 or 0x66 in prefixes else None
    if opcode in (0x6E, 0x7E) and 0x66 in prefixes and rex & 8:  # movq with a general register, or memory
        other = REGISTERS[modrm.rm] if modrm.mod == 3 else ""
        size, stores = _DOUBLE, opcode == 0x7E
    else:
        other = FLOATS[modrm.rm] if modrm.mod == 3 else ""
        size, stores = _vector_size(opcode, prefixes, modrm), opcode in (0x11, 0x13, 0x29, 0x7F, 0xD6)
    if not size:
        return None
    return FloatMove("fmov", other, reg, 0 if other else size) if stores else FloatMove("fmov", reg, other, 0)


def _vector_size(opcode: int, prefixes: Collection[int], modrm: ModRM) -> int:
    """Bytes that a move between vector registers and memory transfers; 0 for any other opcode."""
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


_NONE_0F = frozenset(
    (0x2C, 0x2D, 0x2E, 0x2F, 0x50, 0xC3, 0xC7, *range(0x18, 0x28), *range(0x90, 0xC2), *range(0x40, 0x50), *range(0x10))
)
"""Opcodes of map 0F that change no vector register: conversions to general ones, comparisons, general instructions."""


def float_writes_0f(opcode: int, modrm: ModRM) -> frozenset[str]:
    """Vector registers that an opcode of map 0F with ModRM may change, or more."""
    if opcode == 0xAE:
        return ALL_FLOATS if modrm.reg & 7 in (1, 5) else NOTHING  # fxrstor, xrstor
    return NOTHING if opcode in _NONE_0F else float_writes(modrm)


def float_writes(modrm: ModRM, third: int | None = None) -> frozenset[str]:
    """The vector registers that an instruction names; it changes one of them. ``third``: the register number in the
    vvvv field."""
    registers = _SINGLE[modrm.reg]
    if modrm.mod == 3:
        registers = registers | _SINGLE[modrm.rm]
    return registers if third is None else registers | _SINGLE[third]
