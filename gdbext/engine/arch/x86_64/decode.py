"""Decodes x86-64 code: instruction boundaries, and the meaning of the few instructions that move values about.

Lengths follow the opcode maps of the Intel SDM, volume 2, appendix A (legacy, VEX and EVEX encodings), for code that
compilers emit in 64-bit mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.engine.arch.instruction import NOTHING, PC_RELATIVE, Instruction, MemoryOperand
from gdbext.engine.arch.x86_64 import effects
from gdbext.engine.arch.x86_64.conventions import BY_ENCODING as REGISTERS
from gdbext.engine.arch.x86_64.effects import ALL_FLOATS, Effects, ModRM, float_move, float_writes, float_writes_0f

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

IMM8, IMM16, IMM8_16, IMM_Z, REL32, MOFFS, IMM_V, IMM_TEST = range(1, 9)
"""Immediates: 1 byte; 2; ``enter``'s 2 + 1; 4 (2 with operand size 16); a branch's 4 that no prefix shortens; an
address of 8 (4 with address size 32); ``mov``'s up to 8; ``test``'s, which depends on ModRM.reg."""
MODRM = 0x40
BAD = 0x80
_FORMS = {
    BAD: bytes.fromhex("06 07 0e 0f 16 17 1e 1f 26 27 2e 2f 36 37 3e 3f 60 61 82 9a ce d4 d5 d6 ea"),
    MODRM: (
        *(row + column for row in range(0, 0x40, 8) for column in range(4)),  # add, or, adc, sbb, and, sub, xor, cmp
        *(0x63, *range(0x84, 0x90), *range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xFE, 0xFF),
    ),
    IMM8: (
        *range(4, 0x40, 8),
        *(0x6A, *range(0x70, 0x80), 0xA8, *range(0xB0, 0xB8), 0xCD, *range(0xE0, 0xE8), 0xEB),
    ),
    MODRM | IMM8: (0x6B, 0x80, 0x83, 0xC0, 0xC1, 0xC6),
    MODRM | IMM_Z: (0x69, 0x81, 0xC7),
    IMM_Z: (*range(5, 0x40, 8), 0x68, 0xA9),
    IMM16: (0xC2, 0xCA),
    IMM8_16: (0xC8,),
    REL32: (0xE8, 0xE9),
    MODRM | IMM_TEST: (0xF6, 0xF7),
    MOFFS: range(0xA0, 0xA4),
    IMM_V: range(0xB8, 0xC0),
}
_FORM_OF = {opcode: form for form, opcodes in _FORMS.items() for opcode in opcodes}
ONE_BYTE = bytes(_FORM_OF.get(opcode, 0) for opcode in range(256))
"""One-byte opcode → MODRM, BAD and the kind of immediate."""
PREFIXES = frozenset((0x66, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x67, 0xF0))
NO_MODRM_0F = frozenset(
    (*bytes.fromhex("05 06 07 08 09 0b 0e 77 a0 a1 a2 a8 a9 aa"), *range(0x30, 0x38), *range(0xC8, 0xD0))
)
"""Opcodes of map 0F without ModRM (the conditional jumps 80–8F come on top)."""
IMMEDIATE_0F = frozenset((0x0F, 0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6))
"""Opcodes of map 0F with an 8-bit immediate."""
VEX_IMMEDIATE_0F = frozenset((0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6))  # the same under VEX and EVEX, map 1
_RAX = frozenset(("rax",))
_RSP = frozenset(("rsp",))
_FRAME = frozenset(("rsp", "rbp"))
_ALL = frozenset(REGISTERS)


def instructions(code: bytes, address: int) -> Iterator[Instruction]:
    """Decode ``code``, which is at ``address``, until its end or an unknown instruction."""
    position = 0
    while position < len(code):
        try:
            insn = _decode(code, position, address)
        except IndexError:
            return
        if not insn or position + insn.length > len(code):
            return
        yield insn
        position += insn.length


def _decode(code: bytes, start: int, address: int) -> Instruction | None:
    """The instruction at offset ``start`` of ``code``, which is at ``address``; None if unknown. Raises IndexError if
    the code ends in the middle."""
    position = start
    byte = code[position]
    prefixes: Sequence[int] = ()
    while byte in PREFIXES:
        prefixes = (*prefixes, byte)
        position += 1
        if position - start > 14:
            return None
        byte = code[position]
    rex = 0
    if byte & 0xF0 == 0x40:
        rex = byte
        position += 1
        byte = code[position]
    here = address + start
    if byte in (0xC4, 0xC5, 0x62) and not rex:
        insn: Instruction | None = _vector(code, start, position, here)
    elif byte == 0x0F:
        insn = _two_byte(code, start, position + 1, rex, here, prefixes)
    else:
        insn = _one_byte(code, start, position, rex, here, prefixes)
    if insn and prefixes and not {0x64, 0x65, 0x67}.isdisjoint(prefixes):
        moves = insn.kind in ("mov", "lea", "low", "fmov")  # relative to a segment, or 32 bits of address
        return insn._replace(kind="other" if moves else insn.kind, memory=None)
    return insn


def _one_byte(
    code: bytes, start: int, position: int, rex: int, here: int, prefixes: Sequence[int]
) -> Instruction | None:
    """The instruction with the one-byte opcode at ``position``, its prefixes from ``start`` on; ``here`` is its
    address."""
    opcode = code[position]
    form = ONE_BYTE[opcode]
    if form & BAD:
        return None
    position += 1
    modrm = None
    if form & MODRM:
        modrm = _modrm(code, position, rex)
        position += modrm.size
    narrow = 0x66 in prefixes and not rex & 8
    kind, size, immediate = form & 0x0F, 0, None
    if not kind:
        pass
    elif kind < IMM_Z:
        size = 3 if kind == IMM8_16 else kind
    elif kind == IMM_TEST:
        if modrm and modrm.reg & 7 <= 1:
            size = 1 if opcode == 0xF6 else 2 if narrow else 4
    elif kind == MOFFS:
        size = 4 if 0x67 in prefixes else 8
    elif kind == IMM_V and rex & 8:
        size = 8
    else:
        size = 2 if narrow and kind != REL32 else 4
    if size:
        immediate = int.from_bytes(code[position : position + size], "little", signed=True)
        position += size
    if position > len(code):
        return None
    if not modrm:
        return _plain(here, position - start, opcode, rex, immediate, narrow)
    if opcode in (0x88, 0x89, 0x8B) and not rex & 8:
        return _low_move(here, position - start, opcode, rex, modrm, narrow)
    return _with_modrm(here, position - start, opcode, rex, modrm, immediate)


_REGISTER_OPERANDS = {
    rex: [ModRM(3, (byte >> 3 & 7) | (rex & 4) << 1, byte & 7 | (rex & 1) << 3, 1, None) for byte in range(0xC0, 0x100)]
    for rex in (0, 1, 4, 5)
}
"""Operands that are both registers, by the bits R and B of REX and the byte behind the opcode."""


def _modrm(code: bytes, position: int, rex: int) -> ModRM:
    """The operands in the ModRM byte at ``position``, with SIB and displacement. Raises IndexError."""
    byte = code[position]
    if byte >= 0xC0:
        return _REGISTER_OPERANDS[rex & 5][byte - 0xC0]
    mod, reg, rm = byte >> 6, (byte >> 3 & 7) | (rex & 4) << 1, byte & 7
    size, base, index, scale = 1, "", "", 1
    if rm == 4:
        sib = code[position + 1]
        size = 2
        number = (sib >> 3 & 7) | (rex & 2) << 2
        if number != 4:
            index, scale = REGISTERS[number], 1 << (sib >> 6)
        if sib & 7 != 5 or mod:
            base = REGISTERS[(sib & 7) | (rex & 1) << 3]
        width = 1 if mod == 1 else 4 if mod == 2 or not base else 0
    elif rm == 5 and mod == 0:
        base, width = PC_RELATIVE, 4
    else:
        base = REGISTERS[rm | (rex & 1) << 3]
        width = (0, 1, 4)[mod]
    raw = code[position + size : position + size + width]
    if len(raw) < width:
        raise IndexError
    displacement = int.from_bytes(raw, "little", signed=True)
    return ModRM(mod, reg, rm | (rex & 1) << 3, size + width, MemoryOperand(base, index, scale, displacement))


def _other(
    here: int, length: int, effect: Effects, memory: MemoryOperand | None = None, floats: frozenset[str] = NOTHING
) -> Instruction:
    return Instruction(here, length, "other", "", "", memory, None, 0, effect.writes, effect.stored, floats)


def _two_byte(code: bytes, start: int, position: int, rex: int, here: int, prefixes: Sequence[int]) -> Instruction:
    """The instruction of map 0F whose opcode is at ``position``, behind the byte 0F."""
    opcode = code[position]
    position += 1
    if opcode in (0x38, 0x3A):
        third = code[position]
        modrm = _modrm(code, position + 1, rex)
        length = position + 1 + modrm.size + (opcode == 0x3A) - start
        effect = effects.map_0f38(third, modrm) if opcode == 0x38 else effects.map_0f3a(third, modrm)
        return _other(here, length, effect, modrm.memory, float_writes(modrm))
    if 0x80 <= opcode < 0x90:
        relative = int.from_bytes(code[position : position + 4], "little", signed=True)
        length = position + 4 - start
        return Instruction(here, length, "jcc", target=here + length + relative)
    if opcode in NO_MODRM_0F:
        if opcode == 0x0B:  # ud2
            return Instruction(here, position - start, "trap")
        return _other(here, position - start, effects.plain_0f(opcode, rex))
    modrm = _modrm(code, position, rex)
    length = position + modrm.size + (opcode in IMMEDIATE_0F) - start
    if opcode in (0xB9, 0xFF):  # ud1, ud0
        return Instruction(here, length, "trap")
    effect = effects.map_0f(opcode, rex, modrm, 0xF3 in prefixes)
    if opcode in (0xB6, 0xB7) and (opcode == 0xB7 or modrm.memory or rex or modrm.rm < 4) and 0x66 not in prefixes:
        source = REGISTERS[modrm.rm] if modrm.mod == 3 else ""  # movzx
        size = opcode - 0xB5
        return Instruction(here, length, "low", REGISTERS[modrm.reg], source, modrm.memory, size, 0, effect.writes)
    floats = float_writes_0f(opcode, modrm)
    move = float_move(opcode, prefixes, rex, modrm) if floats else None
    if not move:
        return _other(here, length, effect, modrm.memory, floats)
    kind, destination, source, stored = move
    writes = effect.writes
    changed = floats & {destination}
    return Instruction(here, length, kind, destination, source, modrm.memory, None, 0, writes, stored, changed)


def _vector(code: bytes, start: int, position: int, here: int) -> Instruction:
    """The instruction whose VEX or EVEX prefix is at ``position``."""
    first, second = code[position], code[position + 1]
    if first == 0xC5:
        rex, opcode_map, last = ~second >> 5 & 4, 1, second
        position += 2
    else:
        rex, opcode_map, last = ~second >> 5 & 7, second & (31 if first == 0xC4 else 7), code[position + 2]
        position += 3 if first == 0xC4 else 4
    opcode = code[position]
    position += 1
    if opcode_map == 1 and opcode == 0x77 and first != 0x62:  # vzeroupper
        return Instruction(here, position - start, "other", float_writes=ALL_FLOATS if last & 4 else NOTHING)
    modrm = _modrm(code, position, rex)
    position += modrm.size + (opcode_map == 3 or (opcode_map == 1 and opcode in VEX_IMMEDIATE_0F))
    effect = effects.vector(opcode_map, opcode, modrm, ~last >> 3 & 15)
    memory = modrm.memory
    if first == 0x62 and memory:  # an 8-bit displacement counts in units that depend on the opcode
        memory = memory._replace(base="", index_register="", displacement=0) if effect.stored else None
        effect = effect._replace(stored=effects.ANY_SIZE) if effect.stored else effect
    return _other(here, position - start, effect, memory, float_writes(modrm, ~last >> 3 & 15))


def _plain(here: int, length: int, opcode: int, rex: int, immediate: int | None, narrow: bool) -> Instruction | None:
    """The instruction of a one-byte opcode without ModRM; ``narrow``: of 16 bits. None for what no compiler emits."""
    low = REGISTERS[(opcode & 7) | (rex & 1) << 3]
    if 0x50 <= opcode <= 0x57:
        return Instruction(here, length, "push", source=low, writes=_RSP)
    if 0x58 <= opcode <= 0x5F:
        return Instruction(here, length, "pop", destination=low, writes=frozenset((low, "rsp")))
    if opcode in (0x68, 0x6A):
        return Instruction(here, length, "push", immediate=immediate, writes=_RSP)
    if 0xB8 <= opcode <= 0xBF:
        value = (immediate or 0) if rex & 8 else (immediate or 0) & 0xFFFF_FFFF
        kind = "other" if narrow else "mov"
        return Instruction(here, length, kind, low, immediate=value, writes=frozenset((low,)))
    if opcode in (0xE8, 0xE9, 0xEB):
        target = here + length + (immediate or 0)
        return Instruction(
            here, length, "call" if opcode == 0xE8 else "jmp", target=target, writes=_ALL if opcode == 0xE8 else NOTHING
        )
    if 0x70 <= opcode <= 0x7F or 0xE0 <= opcode <= 0xE3:
        writes = frozenset(("rcx",)) if 0xE0 <= opcode <= 0xE2 else NOTHING  # loop
        return Instruction(here, length, "jcc", target=here + length + (immediate or 0), writes=writes)
    if opcode in (0xC2, 0xC3):
        return Instruction(here, length, "ret", immediate=immediate)
    if opcode in (0xCC, 0xF4):  # int3, hlt
        return Instruction(here, length, "trap")
    if opcode == 0xC9:
        return Instruction(here, length, "leave", "rbp", writes=_FRAME)
    effect = effects.plain(opcode, rex)
    if (narrow and opcode == 0x9C) or opcode in (0xCA, 0xCB, 0xCF):
        return None  # no compiler's code
    return Instruction(here, length, "other", writes=effect.writes, stored=effect.stored)


def _low_move(here: int, length: int, opcode: int, rex: int, modrm: ModRM, narrow: bool) -> Instruction:
    """A mov (88, 89, 8B) of less than 8 bytes. Moves of 1 and 2 bytes to a register leave the rest of it alone."""
    size = 1 if opcode == 0x88 else 2 if narrow else 4
    effect = effects.with_modrm(opcode, rex, modrm)
    stored = size if effect.stored else 0
    reg, rm = REGISTERS[modrm.reg], REGISTERS[modrm.rm] if modrm.mod == 3 else ""
    is_second_byte = opcode == 0x88 and not rex and (modrm.reg > 3 or bool(rm and modrm.rm > 3))  # ah to bh
    if is_second_byte or (opcode == 0x8B and narrow and not rm):
        return Instruction(here, length, "other", "", "", modrm.memory, None, 0, effect.writes, stored)
    destination, source = (reg, rm) if opcode == 0x8B else (rm, reg)
    kind = "part" if rm and size < 4 else "low"
    return Instruction(here, length, kind, destination, source, modrm.memory, size, 0, effect.writes, stored)


def _with_modrm(
    here: int, length: int, opcode: int, rex: int, modrm: ModRM, immediate: int | None
) -> Instruction | None:
    """The instruction of a one-byte opcode with ModRM; None for what no compiler emits."""
    reg, rm = REGISTERS[modrm.reg], REGISTERS[modrm.rm] if modrm.mod == 3 else ""
    operation, memory = modrm.reg & 7, modrm.memory
    if opcode == 0xFF and operation > 1:
        if operation == 2:
            return Instruction(here, length, "call", source=rm, memory=memory, writes=_ALL)
        if operation == 4:
            return Instruction(here, length, "jmp", source=rm, memory=memory)
        if operation == 6:
            return Instruction(here, length, "push", source=rm, memory=memory, writes=_RSP)
        return None  # far calls and jumps
    if opcode == 0x8F:
        writes = frozenset((rm, "rsp")) if rm else _RSP
        return Instruction(here, length, "pop", rm, "", memory, writes=writes, stored=0 if rm else 8)
    if opcode in (0xC6, 0xC7) and operation:
        # xbegin, which continues behind it or at its target with a status in rax, and xabort; the rest is undefined
        if (modrm.mod, operation, modrm.rm) != (3, 7, 0):
            return None
        target = here + length + (immediate or 0) if opcode == 0xC7 else 0
        return Instruction(here, length, "jcc" if target else "other", target=target, writes=_RAX)
    effect = effects.with_modrm(opcode, rex, modrm)
    if opcode == 0xFF:
        return _other(here, length, effect, memory)
    kind, destination, source = "other", "", ""
    if opcode in (0x31, 0x33) and rm == reg:  # 16-bit xor leaves the rest of the register alone
        kind = "zero" if length == (3 if rex else 2) else "other"
        destination, immediate = reg, 0
    elif not rex & 8:
        pass
    elif opcode == 0x8B:
        kind, destination, source = "mov", reg, rm
    elif opcode == 0x89:
        kind, destination, source = "mov", rm, reg
    elif opcode == 0x8D and not rm:
        kind, destination = "lea", reg
    elif opcode == 0xC7:
        kind, destination = "mov", rm
    elif opcode == 0x23:
        kind, destination, source = "and", reg, rm
    elif opcode == 0x21 and rm:
        kind, destination, source = "and", rm, reg
    elif opcode in (0x81, 0x83) and rm and operation == 4:
        kind, destination = "and", rm
    elif opcode in (0x81, 0x83) and rm and operation in (0, 5):
        kind, destination = "add", rm
        immediate = -(immediate or 0) if operation else immediate
    elif opcode == 0xC1 and rm and operation == 5:
        kind, destination = "shr", rm
    return Instruction(here, length, kind, destination, source, memory, immediate, 0, *effect)
