"""What an instruction changes: the general registers that it may write, and how many bytes of memory.

Both err on the side of more: whoever follows a value through code must never miss a write. From the operand columns
of the Intel SDM, volume 2; instructions for operating systems only are left out.
"""

from __future__ import annotations

from gdbext.arch.instruction import NOTHING, MemoryOperand
from gdbext.arch.x86_64.registers import BY_ENCODING as REGISTERS
from gdbext.model.record import Record

ANY_SIZE = 1 << 20
"""Bytes written by instructions that save processor state, or whose place in memory is not the operand's alone."""
_VECTOR = 64
"""Bytes of the widest vector store."""


class ModRM(Record):
    """The operands that a ModRM byte names: ``reg`` and ``rm`` are register numbers, ``memory`` is set unless mod is 3;
    ``size`` is the encoding's, in bytes, SIB and displacement included."""

    mod: int
    reg: int
    rm: int
    size: int
    memory: MemoryOperand | None


class Effects(Record):
    """``writes``: general registers that may change; ``stored``: bytes of the memory operand that may change."""

    writes: frozenset[str] = NOTHING
    stored: int = 0


NO_EFFECT = Effects()


def _names(*names: str) -> frozenset[str]:
    return frozenset(names)


def _rm(modrm: ModRM, size: int = 8) -> Effects:
    """Writes its ModRM.rm operand, a register or memory."""
    return Effects(_names(REGISTERS[modrm.rm])) if modrm.mod == 3 else Effects(NOTHING, size)


def _reg(modrm: ModRM) -> Effects:
    return Effects(_names(REGISTERS[modrm.reg]))


def _both(modrm: ModRM, size: int = 8) -> Effects:
    rm = _rm(modrm, size)
    return Effects(rm.writes | {REGISTERS[modrm.reg]}, rm.stored)


def byte_register(number: int, rex: int) -> int:
    """The register that an 8-bit operand is part of: without REX, 4 to 7 are ah, ch, dh and bh."""
    return number & 3 if 4 <= number < 8 and not rex else number


_STRING = _names("rsi", "rdi", "rcx", "rax")
_PLAIN = {
    0x98: _names("rax"), 0x99: _names("rdx"), 0x9C: _names("rsp"), 0x9D: _names("rsp"), 0x9F: _names("rax"),
    0xC8: _names("rsp", "rbp"), 0xD7: _names("rax"), 0xA0: _names("rax"),
    0xA1: _names("rax"), 0x6C: _STRING, 0x6D: _STRING, 0x6E: _STRING, 0x6F: _STRING, 0xE4: _names("rax"),
    0xE5: _names("rax"), 0xEC: _names("rax"), 0xED: _names("rax"),
    **dict.fromkeys((0xA4, 0xA5, 0xA6, 0xA7, 0xAA, 0xAB, 0xAC, 0xAD, 0xAE, 0xAF), _STRING),
    **dict.fromkeys((0x04, 0x05, 0x0C, 0x0D, 0x14, 0x15, 0x1C, 0x1D), _names("rax")),
    **dict.fromkeys((0x24, 0x25, 0x2C, 0x2D, 0x34, 0x35), _names("rax")),
}  # fmt: skip
"""One-byte opcodes without ModRM that write registers."""
_PLAIN_STORES = frozenset((0xA2, 0xA3, 0xA4, 0xA5, 0xAA, 0xAB, 0x6C, 0x6D, 0xC8))


def plain(opcode: int, rex: int) -> Effects:
    """Of a one-byte opcode without ModRM, as far as it is not a move, push, pop, call or jump."""
    if 0xB0 <= opcode <= 0xB7:
        return Effects(_names(REGISTERS[byte_register((opcode & 7) | (rex & 1) << 3, rex)]))
    if 0x90 <= opcode <= 0x97:
        register = REGISTERS[(opcode & 7) | (rex & 1) << 3]
        return NO_EFFECT if register == "rax" else Effects(_names("rax", register))
    return Effects(_PLAIN.get(opcode, NOTHING), ANY_SIZE if opcode in _PLAIN_STORES else 0)


_X87_LOADS = {0xD8: range(8), 0xD9: (0, 4, 5), 0xDA: range(8), 0xDB: (0, 5), 0xDC: range(8), 0xDD: (0, 4),
              0xDE: range(8), 0xDF: (0, 4, 5)}  # fmt: skip
"""ModRM.reg of the x87 operations that only read their memory operand."""


_BYTE_OPERANDS = frozenset((
    *range(0, 0x40, 2), 0x80, 0x84, 0x86, 0x88, 0x8A, 0xC0, 0xC6, 0xD0, 0xD2, 0xF6, 0xFE,
))  # fmt: skip


def with_modrm(opcode: int, rex: int, modrm: ModRM) -> Effects:
    """Of a one-byte opcode with ModRM."""
    operation = modrm.reg & 7
    if opcode in _BYTE_OPERANDS:
        rm = byte_register(modrm.rm, rex) if modrm.mod == 3 else modrm.rm
        modrm = modrm._replace(reg=byte_register(modrm.reg, rex), rm=rm)
    if opcode < 0x40:
        if opcode >= 0x38:
            return NO_EFFECT  # cmp
        return _reg(modrm) if opcode & 2 else _rm(modrm)
    if 0xD8 <= opcode <= 0xDF:
        return _x87(opcode, operation, modrm)
    if opcode in (0x84, 0x85, 0x8E):
        return NO_EFFECT  # test, mov to a segment register
    if opcode in (0x80, 0x81, 0x83):
        return NO_EFFECT if operation == 7 else _rm(modrm)
    if opcode in (0xF6, 0xF7):
        if operation < 2:
            return NO_EFFECT
        return _rm(modrm) if operation < 4 else Effects(_names("rax", "rdx"))
    if opcode in (0x86, 0x87):
        return _both(modrm)
    if opcode in (0x63, 0x69, 0x6B, 0x8A, 0x8B, 0x8D):
        return _reg(modrm)
    return _rm(modrm)


def _x87(opcode: int, operation: int, modrm: ModRM) -> Effects:
    if modrm.mod == 3:
        return Effects(_names("rax")) if opcode == 0xDF and operation == 4 else NO_EFFECT  # fnstsw %ax
    return NO_EFFECT if operation in _X87_LOADS[opcode] else Effects(NOTHING, 128)


_REG_0F = frozenset((*range(0x40, 0x50), 0x02, 0x03, 0x2C, 0x2D, 0x50, 0xAF, 0xB6, 0xB7, 0xB8, 0xBC, 0xBD, 0xBE, 0xBF,
                     0xC5, 0xD7, 0xB2, 0xB4, 0xB5))  # fmt: skip
_RM_0F = frozenset((0x00, 0x7E, *range(0x90, 0xA0), 0xA4, 0xA5, 0xAC, 0xAD, 0xC3, 0x20, 0x21))
_BIT_0F = frozenset((0xAB, 0xB3, 0xBB))
_VECTOR_STORES_0F = frozenset((0x11, 0x13, 0x17, 0x29, 0x2B, 0x7F, 0xD6, 0xE7, 0xF7))
"""movups, movlps, movhps, movaps, movntps, movdqa, movq, movntdq, maskmovdqu."""
_PLAIN_0F = {
    0x05: _names("rax", "rcx", "r11"), 0x31: _names("rax", "rdx"), 0x32: _names("rax", "rdx"),
    0x33: _names("rax", "rdx"), 0x34: _names("rcx", "r11", "rsp"), 0x37: frozenset(REGISTERS),
    0xA0: _names("rsp"), 0xA1: _names("rsp"), 0xA2: _names("rax", "rbx", "rcx", "rdx"), 0xA8: _names("rsp"),
    0xA9: _names("rsp"),
}  # fmt: skip


def plain_0f(opcode: int, rex: int) -> Effects:
    """Of an opcode of map 0F without ModRM."""
    if 0xC8 <= opcode <= 0xCF:
        return Effects(_names(REGISTERS[(opcode & 7) | (rex & 1) << 3]))
    return Effects(_PLAIN_0F.get(opcode, NOTHING))


def map_0f(opcode: int, rex: int, modrm: ModRM, repeat: bool) -> Effects:
    """Of an opcode of map 0F with ModRM; ``repeat`` where the prefix F3 is there."""
    operation = modrm.reg & 7
    if opcode in _REG_0F:
        return _reg(modrm)
    if opcode == 0x7E and repeat:
        return NO_EFFECT  # movq between vector registers, or a load
    if opcode in _VECTOR_STORES_0F:
        return NO_EFFECT if modrm.mod == 3 else Effects(NOTHING, _VECTOR)
    if 0x90 <= opcode <= 0x9F and modrm.mod == 3:
        return Effects(_names(REGISTERS[byte_register(modrm.rm, rex)]))
    if opcode in _RM_0F:
        return _rm(modrm)
    if opcode in _BIT_0F or (opcode == 0xBA and operation > 4):
        return _rm(modrm, ANY_SIZE)
    if opcode in (0xB0, 0xB1, 0xC0, 0xC1, 0xC7):
        return _exchange(opcode, rex, modrm)
    if opcode == 0x01:
        return Effects(_names("rax", "rcx", "rdx", REGISTERS[modrm.rm]), 0 if modrm.mod == 3 else 16)
    if opcode == 0x1E or (opcode == 0xAE and modrm.mod == 3):  # rdssp; rdfsbase, rdgsbase
        return _rm(modrm) if repeat and modrm.mod == 3 and operation < 2 else NO_EFFECT
    if opcode == 0xAE:  # fxsave, xsave and the like; stmxcsr
        return Effects(NOTHING, ANY_SIZE) if operation in (0, 3, 4, 6) else NO_EFFECT
    return NO_EFFECT


def _exchange(opcode: int, rex: int, modrm: ModRM) -> Effects:
    """xadd, cmpxchg, cmpxchg16b, xsavec, rdrand."""
    if opcode in (0xB0, 0xC0):
        rm = byte_register(modrm.rm, rex) if modrm.mod == 3 else modrm.rm
        modrm = modrm._replace(reg=byte_register(modrm.reg, rex), rm=rm)
    found = _both(modrm, ANY_SIZE if opcode == 0xC7 else 16)
    return Effects(found.writes | {"rax", "rdx"}, found.stored)


_GENERAL_0F38 = frozenset((0xF0, 0xF1, 0xF5, 0xF6, 0xF8, 0xF9))
_EXTRACTS_0F3A = frozenset((0x14, 0x15, 0x16, 0x17))
_STRING_INDEX_0F3A = frozenset((0x61, 0x63))


def map_0f38(opcode: int, modrm: ModRM) -> Effects:
    """movbe, crc32, adcx, adox, movdiri; the rest is for vectors and only reads memory."""
    return _both(modrm, _VECTOR) if opcode in _GENERAL_0F38 else NO_EFFECT


def map_0f3a(opcode: int, modrm: ModRM) -> Effects:
    """pextr writes general registers or memory; pcmpestri and pcmpistri leave an index in rcx."""
    if opcode in _STRING_INDEX_0F3A:
        return Effects(_names("rcx"))
    return _rm(modrm) if opcode in _EXTRACTS_0F3A else NO_EFFECT


_VECTOR_GENERAL = frozenset((0x2C, 0x2D, 0x50, 0x78, 0x79, 0x93, 0xC5, 0xD7))
"""cvt(t)s?2si, movmsk, cvtts?2usi, kmov to a register, pextrw, pmovmskb: they write ModRM.reg."""
_VECTOR_STORES = {
    1: _VECTOR_STORES_0F | {0x7E, 0x91, 0xAE},
    2: frozenset((0x2E, 0x2F, 0x8E, *range(0x10, 0x16), *range(0x20, 0x26), *range(0x30, 0x36), 0x63, 0x8A, 0x8B,
                  0xA0, 0xA1, 0xA2, 0xA3)),
    3: frozenset((0x14, 0x15, 0x16, 0x17, 0x19, 0x1B, 0x1D, 0x39, 0x3B)),
    5: frozenset((0x11, 0x7E)),
}  # fmt: skip
"""By map: opcodes that may store under VEX or EVEX (moves, maskmov, narrowing moves, compress, scatter, extracts,
stmxcsr)."""


def vector(opcode_map: int, opcode: int, modrm: ModRM, third: int) -> Effects:
    """Of a VEX or EVEX instruction; ``third`` is the register in its vvvv field."""
    if opcode_map == 2 and opcode in (0xF2, 0xF3, 0xF5, 0xF6, 0xF7):  # andn, blsr, bzhi, pdep, mulx, shlx …
        return Effects(_names(REGISTERS[modrm.reg], REGISTERS[third]))
    if (opcode_map == 3 and opcode == 0xF0) or (opcode_map in (1, 5) and opcode in _VECTOR_GENERAL):
        return _reg(modrm)
    if opcode_map == 3 and opcode in _STRING_INDEX_0F3A:
        return Effects(_names("rcx"))
    stores = opcode in _VECTOR_STORES.get(opcode_map, ())
    if modrm.mod != 3:
        size = ANY_SIZE if opcode_map == 2 and 0xA0 <= opcode <= 0xA3 else _VECTOR
        return Effects(NOTHING, size) if stores else NO_EFFECT
    if (opcode_map in (1, 5) and opcode == 0x7E) or (opcode_map == 3 and opcode in _EXTRACTS_0F3A):
        return _rm(modrm)
    return NO_EFFECT
