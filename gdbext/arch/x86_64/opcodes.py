"""Which x86-64 opcodes have a ModRM byte and an immediate: all that the length of an instruction depends on.

From the opcode maps of the Intel SDM, volume 2, appendix A (tables A-2 to A-5), for 64-bit mode.
"""

from __future__ import annotations

IMM8, IMM16, IMM8_16, IMM_Z, REL32, MOFFS, IMM_V, IMM_TEST = range(1, 9)
"""Immediates: 1 byte; 2; ``enter``'s 2 + 1; 4 (2 with operand size 16); a branch's 4 that no prefix shortens; an
address of 8 (4 with address size 32); ``mov``'s up to 8; ``test``'s, which depends on ModRM.reg."""
MODRM = 0x40
BAD = 0x80
IMMEDIATE = 0x0F

PREFIXES = frozenset((0x66, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x67, 0xF0))


def _one_byte() -> bytes:
    table = bytearray(256)
    for row in range(0, 0x40, 8):  # add, or, adc, sbb, and, sub, xor, cmp
        table[row : row + 8] = bytes((MODRM, MODRM, MODRM, MODRM, IMM8, IMM_Z, BAD, BAD))
    for opcode in (0x60, 0x61, 0x82, 0x9A, 0xCE, 0xD4, 0xD5, 0xD6, 0xEA):
        table[opcode] = BAD
    for opcode in (0x63, *range(0x84, 0x90), *range(0xD0, 0xD4), *range(0xD8, 0xE0), 0xFE, 0xFF):
        table[opcode] = MODRM
    for opcode in (0x6A, *range(0x70, 0x80), 0xA8, *range(0xB0, 0xB8), 0xCD, *range(0xE0, 0xE8), 0xEB):
        table[opcode] = IMM8
    for opcode in (0x6B, 0x80, 0x83, 0xC0, 0xC1, 0xC6):
        table[opcode] = MODRM | IMM8
    for opcode in (0x69, 0x81, 0xC7):
        table[opcode] = MODRM | IMM_Z
    table[0x68] = table[0xA9] = IMM_Z
    table[0xC2] = table[0xCA] = IMM16
    table[0xC8] = IMM8_16
    table[0xE8] = table[0xE9] = REL32
    table[0xF6] = table[0xF7] = MODRM | IMM_TEST
    for opcode in range(0xA0, 0xA4):
        table[opcode] = MOFFS
    for opcode in range(0xB8, 0xC0):
        table[opcode] = IMM_V
    return bytes(table)


ONE_BYTE = _one_byte()
"""By opcode: MODRM, BAD and the kind of immediate."""

NO_MODRM_0F = frozenset((
    0x05, 0x06, 0x07, 0x08, 0x09, 0x0B, 0x0E, *range(0x30, 0x38), 0x77, 0xA0, 0xA1, 0xA2, 0xA8, 0xA9, 0xAA,
    *range(0xC8, 0xD0),
))  # fmt: skip
"""Opcodes of map 0F without ModRM (the conditional jumps 80–8F come on top)."""
IMMEDIATE_0F = frozenset((0x0F, 0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6))
"""Opcodes of map 0F with an 8-bit immediate."""
VEX_IMMEDIATE_0F = frozenset((0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6))
"""The same under VEX and EVEX, map 1."""
