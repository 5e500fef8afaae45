"""Instruction boundaries of x86-64 code, and the meaning of the few instructions that move arguments about.

Linear decoding of what compilers emit in 64-bit mode. Lengths follow the opcode maps of the Intel SDM, volume 2,
appendix A (legacy, VEX and EVEX encodings); an instruction that is not understood ends the decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

REGISTERS = (
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
"""General registers by their encoding."""

_NOTHING: frozenset[str] = frozenset()
_IMPLICIT = frozenset(("rax", "rcx", "rdx", "rsi", "rdi", "rsp", "rbx"))
"""What string, multiply, exchange and system instructions may write without naming it."""


class MemoryOperand(NamedTuple):
    """``[base + index*scale + displacement]``; base "rip" counts from the end of the instruction."""

    base: str | None
    index_register: str | None
    scale: int
    displacement: int


class Instruction(NamedTuple):
    """One instruction. ``kind`` is "mov", "lea", "zero", "push", "pop", "call", "jmp", "jcc", "ret" or "other".

    "mov" and "lea" have a ``destination`` register (None: it stores to memory) and a ``source`` register, a
    ``memory`` operand or an ``immediate``. ``target`` is where a direct call or jump goes, None when it goes
    through a register or memory. ``writes`` are the general registers it may change, flags aside.
    """

    address: int
    length: int
    kind: str
    destination: str | None = None
    source: str | None = None
    memory: MemoryOperand | None = None
    immediate: int | None = None
    target: int | None = None
    writes: frozenset[str] = _NOTHING

    @property
    def is_call(self) -> bool:
        """A call, direct or not."""
        return self.kind == "call"

    @property
    def end(self) -> int:
        """Address of the next instruction."""
        return self.address + self.length


_PREFIXES = frozenset((0x66, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x67, 0xF0))


def _one_byte_maps() -> tuple[bytes, bytes]:
    """(has ModRM, immediate) of the one-byte opcodes. Immediates: 1, 2, 3 (enter), 4 = z, 8 = moffs, 9 = v, 255 bad."""
    modrm, immediate = bytearray(256), bytearray(256)
    for base in range(0, 0x40, 8):
        for low in range(4):
            modrm[base + low] = 1
        immediate[base + 4], immediate[base + 5] = 1, 4
        immediate[base + 6] = immediate[base + 7] = 255
    for opcode in (0x63, 0x69, 0x6B, 0x80, 0x81, 0x83, 0xC0, 0xC1, 0xC6, 0xC7, 0xF6, 0xF7, 0xFE, 0xFF):
        modrm[opcode] = 1
    for opcode in (*range(0x84, 0x90), *range(0xD0, 0xD4), *range(0xD8, 0xE0)):
        modrm[opcode] = 1
    for opcode in (0x6A, 0x6B, *range(0x70, 0x80), 0x80, 0x83, 0xA8, *range(0xB0, 0xB8), 0xC0, 0xC1, 0xC6, 0xCD,
                   *range(0xE0, 0xE8), 0xEB):  # fmt: skip
        immediate[opcode] = 1
    for opcode in (0x68, 0x69, 0x81, 0xA9, 0xC7, 0xE8, 0xE9):
        immediate[opcode] = 4
    for opcode in (0xC2, 0xCA):
        immediate[opcode] = 2
    immediate[0xC8] = 3
    for opcode in range(0xA0, 0xA4):
        immediate[opcode] = 8
    for opcode in range(0xB8, 0xC0):
        immediate[opcode] = 9
    for opcode in (0x60, 0x61, 0x82, 0x9A, 0xCE, 0xD4, 0xD5, 0xD6, 0xEA):
        immediate[opcode] = 255
    return bytes(modrm), bytes(immediate)


_MODRM1, _IMMEDIATE1 = _one_byte_maps()
_NO_MODRM_0F = frozenset((0x05, 0x06, 0x07, 0x08, 0x09, 0x0B, 0x0E, *range(0x30, 0x38), 0x77,
                          0xA0, 0xA1, 0xA2, 0xA8, 0xA9, 0xAA, *range(0xC8, 0xD0)))  # fmt: skip
_IMMEDIATE_0F = frozenset((0x0F, 0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6))
_VEX_IMMEDIATE_0F = frozenset((0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6))

_WRITES_REG_0F = frozenset((*range(0x40, 0x50), 0x02, 0x03, 0x2C, 0x2D, 0x50, 0xAF, 0xB6, 0xB7, 0xB8, 0xBC, 0xBD,
                            0xBE, 0xBF, 0xC5, 0xD7))  # fmt: skip
_WRITES_RM_0F = frozenset((0x7E, *range(0x90, 0xA0), 0xA3, 0xA4, 0xA5, 0xAB, 0xAC, 0xAD, 0xB3, 0xBA, 0xBB))
_WRITES_BOTH_0F = frozenset((0xB0, 0xB1, 0xC0, 0xC1, 0xC7))


class _ModRM(NamedTuple):
    mod: int
    reg: int
    rm: int
    size: int
    memory: MemoryOperand | None


def instructions(code: bytes, address: int) -> Iterator[Instruction]:
    """Decodes ``code``, which starts at ``address``, until its end or an instruction that is not understood."""
    position = 0
    while position < len(code):
        try:
            found = _decode(code, position, address)
        except IndexError:
            return
        if found is None or position + found.length > len(code):
            return
        yield found
        position += found.length


def _decode(code: bytes, start: int, address: int) -> Instruction | None:
    position = start
    operand16 = address32 = False
    while code[position] in _PREFIXES:
        operand16 |= code[position] == 0x66
        address32 |= code[position] == 0x67
        position += 1
        if position - start > 14:
            return None
    rex = 0
    if code[position] & 0xF0 == 0x40:
        rex = code[position]
        position += 1
    opcode = code[position]
    here = address + start
    if opcode in (0xC4, 0xC5, 0x62) and not rex:
        return _decode_vector(code, start, position, here)
    if opcode == 0x0F:
        return _decode_two_byte(code, start, position + 1, rex, here)
    position += 1
    modrm = None
    if _MODRM1[opcode]:
        modrm = _modrm(code, position, rex)
        position += modrm.size
    size = _immediate_size(opcode, modrm, rex, operand16, address32)
    if size is None:
        return None
    immediate = int.from_bytes(code[position : position + size], "little", signed=True) if size else None
    position += size
    if position > len(code):
        return None
    return _meaning(here, position - start, opcode, rex, modrm, immediate, operand16)


def _immediate_size(opcode: int, modrm: _ModRM | None, rex: int, operand16: bool, address32: bool) -> int | None:
    kind = _IMMEDIATE1[opcode]
    if kind == 255:
        return None
    if opcode in (0xF6, 0xF7) and modrm is not None and modrm.reg & 7 < 2:
        kind = 1 if opcode == 0xF6 else 4
    if kind == 4:
        return 2 if operand16 and not rex & 8 and opcode not in (0xE8, 0xE9) else 4
    if kind == 8:
        return 4 if address32 else 8
    if kind == 9:
        return 8 if rex & 8 else 2 if operand16 else 4
    return kind


def _modrm(code: bytes, position: int, rex: int) -> _ModRM:
    byte = code[position]
    mod, reg, rm = byte >> 6, (byte >> 3 & 7) | (rex & 4) << 1, byte & 7
    if mod == 3:
        return _ModRM(mod, reg, rm | (rex & 1) << 3, 1, None)
    size, base, index, scale = 1, None, None, 1
    if rm == 4:
        sib = code[position + 1]
        size = 2
        number = (sib >> 3 & 7) | (rex & 2) << 2
        if number != 4:
            index, scale = REGISTERS[number], 1 << (sib >> 6)
        if sib & 7 != 5 or mod:
            base = REGISTERS[(sib & 7) | (rex & 1) << 3]
        width = 1 if mod == 1 else 4 if mod == 2 or base is None else 0
    elif rm == 5 and mod == 0:
        base, width = "rip", 4
    else:
        base = REGISTERS[rm | (rex & 1) << 3]
        width = (0, 1, 4)[mod]
    raw = code[position + size : position + size + width]
    if len(raw) < width:
        raise IndexError
    displacement = int.from_bytes(raw, "little", signed=True)
    return _ModRM(mod, reg, rm | (rex & 1) << 3, size + width, MemoryOperand(base, index, scale, displacement))


def _decode_two_byte(code: bytes, start: int, position: int, rex: int, here: int) -> Instruction | None:
    opcode = code[position]
    position += 1
    if opcode in (0x38, 0x3A):
        third = code[position]
        modrm = _modrm(code, position + 1, rex)
        position += 1 + modrm.size + (opcode == 0x3A)
        general = third in (0xF0, 0xF1, 0xF6, 0xF8, 0xF9) if opcode == 0x38 else 0x14 <= third <= 0x17
        writes = _operands(modrm) if general else _NOTHING
        return Instruction(here, position - start, "other", writes=writes)
    if 0x80 <= opcode < 0x90:
        relative = int.from_bytes(code[position : position + 4], "little", signed=True)
        length = position + 4 - start
        return Instruction(here, length, "jcc", target=here + length + relative)
    if opcode in _NO_MODRM_0F:
        bswap = 0xC8 <= opcode < 0xD0
        writes = frozenset((REGISTERS[(opcode & 7) | (rex & 1) << 3],)) if bswap else _IMPLICIT
        return Instruction(here, position - start, "other", writes=_NOTHING if opcode in (0x0B, 0x77) else writes)
    modrm = _modrm(code, position, rex)
    position += modrm.size + (opcode in _IMMEDIATE_0F)
    return Instruction(here, position - start, "other", writes=_writes_0f(opcode, modrm))


def _writes_0f(opcode: int, modrm: _ModRM) -> frozenset[str]:
    if opcode in _WRITES_REG_0F:
        return frozenset((REGISTERS[modrm.reg],))
    if opcode in _WRITES_RM_0F:
        return frozenset((REGISTERS[modrm.rm],)) if modrm.mod == 3 else _NOTHING
    if opcode in _WRITES_BOTH_0F:
        return _operands(modrm) | {"rax", "rdx"}
    return _NOTHING


def _operands(modrm: _ModRM) -> frozenset[str]:
    names = {REGISTERS[modrm.reg]}
    if modrm.mod == 3:
        names.add(REGISTERS[modrm.rm])
    return frozenset(names)


def _decode_vector(code: bytes, start: int, position: int, here: int) -> Instruction | None:
    """VEX and EVEX: only the length, and whether a general register is written."""
    first = code[position]
    if first == 0xC5:
        rex = (~code[position + 1] >> 5) & 4
        map_, position = 1, position + 2
    elif first == 0xC4:
        inverted = ~code[position + 1]
        rex, map_, position = inverted >> 5 & 7, code[position + 1] & 31, position + 3
    else:
        inverted = ~code[position + 1]
        rex, map_, position = inverted >> 5 & 7, code[position + 1] & 7, position + 4
    opcode = code[position]
    position += 1
    if map_ == 1 and opcode == 0x77 and first != 0x62:
        return Instruction(here, position - start, "other")
    modrm = _modrm(code, position, rex)
    position += modrm.size + (map_ == 3 or (map_ == 1 and opcode in _VEX_IMMEDIATE_0F))
    general = (
        (map_ == 1 and opcode in (0x2C, 0x2D, 0x50, 0x7E, 0xC5, 0xD7, 0x92, 0x93, 0x78, 0x79))
        or (map_ == 2 and opcode >= 0xF0)
        or (map_ == 3 and (0x14 <= opcode <= 0x17 or opcode == 0xF0))
    )
    writes = _operands(modrm) if general else _NOTHING
    if map_ == 2 and opcode == 0xF3:  # blsr and friends name their destination in VEX.vvvv
        writes = frozenset(REGISTERS)
    return Instruction(here, position - start, "other", writes=writes)


def _meaning(
    here: int, length: int, opcode: int, rex: int, modrm: _ModRM | None, immediate: int | None, operand16: bool
) -> Instruction | None:
    low = REGISTERS[(opcode & 7) | (rex & 1) << 3]
    if 0x50 <= opcode <= 0x57:
        return Instruction(here, length, "push", source=low, writes=frozenset(("rsp",)))
    if 0x58 <= opcode <= 0x5F:
        return Instruction(here, length, "pop", destination=low, writes=frozenset((low, "rsp")))
    if 0xB8 <= opcode <= 0xBF and immediate is not None:
        if not rex & 8:
            immediate &= 0xFFFF_FFFF
        return Instruction(here, length, "mov", low, immediate=immediate, writes=frozenset((low,)))
    if opcode in (0xE8, 0xE9, 0xEB) and immediate is not None:
        kind = "call" if opcode == 0xE8 else "jmp"
        writes = frozenset(REGISTERS) if kind == "call" else _NOTHING
        return Instruction(here, length, kind, target=here + length + immediate, writes=writes)
    if (0x70 <= opcode <= 0x7F or 0xE0 <= opcode <= 0xE3) and immediate is not None:
        return Instruction(here, length, "jcc", target=here + length + immediate)
    if opcode in (0xC2, 0xC3, 0xF4):
        return Instruction(here, length, "ret")
    if modrm is None:
        return Instruction(here, length, "other", writes=_NOTHING if opcode == 0x90 else _IMPLICIT)
    if opcode == 0xFF:
        return _group_5(here, length, modrm)
    return _with_modrm(here, length, opcode, rex, modrm, immediate, operand16)


def _group_5(here: int, length: int, modrm: _ModRM) -> Instruction | None:
    which = modrm.reg & 7
    source = REGISTERS[modrm.rm] if modrm.mod == 3 else None
    if which == 2:
        return Instruction(here, length, "call", source=source, memory=modrm.memory, writes=frozenset(REGISTERS))
    if which == 4:
        return Instruction(here, length, "jmp", source=source, memory=modrm.memory)
    if which == 6:
        return Instruction(here, length, "push", source=source, memory=modrm.memory, writes=frozenset(("rsp",)))
    return Instruction(here, length, "other", writes=_operands(modrm)) if which < 2 else None


def _with_modrm(
    here: int, length: int, opcode: int, rex: int, modrm: _ModRM, immediate: int | None, operand16: bool
) -> Instruction:
    reg = REGISTERS[modrm.reg]
    rm = REGISTERS[modrm.rm] if modrm.mod == 3 else None
    wide = bool(rex & 8)
    if opcode == 0x8B and wide:
        return Instruction(here, length, "mov", reg, rm, modrm.memory, writes=frozenset((reg,)))
    if opcode == 0x89 and wide:
        writes = frozenset((rm,)) if rm else _NOTHING
        return Instruction(here, length, "mov", rm, reg, modrm.memory, writes=writes)
    if opcode == 0x8D:
        kind = "lea" if wide else "other"
        return Instruction(here, length, kind, reg, None, modrm.memory, writes=frozenset((reg,)))
    if opcode in (0x31, 0x33) and rm == reg and not operand16:
        return Instruction(here, length, "zero", reg, immediate=0, writes=frozenset((reg,)))
    if opcode == 0xC7 and rm and wide:
        return Instruction(here, length, "mov", rm, immediate=immediate, writes=frozenset((rm,)))
    return Instruction(here, length, "other", memory=modrm.memory, writes=_other_writes(opcode, modrm, reg, rm))


def _other_writes(opcode: int, modrm: _ModRM, reg: str, rm: str | None) -> frozenset[str]:
    if opcode in (0x84, 0x85) or opcode & 0xF8 == 0x38 or 0xD8 <= opcode <= 0xDF:
        return _NOTHING if opcode not in (0xDF,) else frozenset(("rax",))  # test, cmp, x87 (fnstsw ax)
    if opcode in (0x80, 0x81, 0x83) and modrm.reg & 7 == 7:
        return _NOTHING
    if opcode in (0xF6, 0xF7):
        return frozenset((rm,)) if modrm.reg & 7 in (2, 3) and rm else _IMPLICIT if modrm.reg & 7 > 3 else _NOTHING
    if opcode in (0x86, 0x87):
        return _operands(modrm)
    if opcode in (0x63, 0x69, 0x6B, 0x8A, 0x8B, 0x8D) or (opcode < 0x40 and opcode & 2):
        return frozenset((reg,))
    return frozenset((rm,)) if rm else _NOTHING
