"""BPF programs as bytes: the few instructions that our probes are made of.

Encodings: include/uapi/linux/bpf.h and bpf_common.h of Linux 6.6; helpers by their numbers in enum bpf_func_id.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

R0, R1, R2, R3, R4, R6, R7, FRAME = 0, 1, 2, 3, 4, 6, 7, 10

MAP_LOOKUP, MAP_UPDATE, CURRENT_PID_TGID, ATTACH_COOKIE = 1, 2, 14, 174
"""BPF_FUNC_map_lookup_elem, _map_update_elem, _get_current_pid_tgid, _get_attach_cookie."""

Code = bytes


def _one(opcode: int, target: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> Code:
    return struct.pack("<BBhi", opcode, source << 4 | target, offset, immediate)


def move(target: int, source: int) -> Code:
    """``target = source``."""
    return _one(0xBF, target, source)


def constant(target: int, value: int) -> Code:
    """``target = value``, 32 bits, sign-extended."""
    return _one(0xB7, target, immediate=value)


def increase(target: int, value: int) -> Code:
    """``target += value``."""
    return _one(0x07, target, immediate=value)


def load(target: int, base: int, offset: int) -> Code:
    """``target = *(u64 *)(base + offset)``."""
    return _one(0x79, target, base, offset)


def store(base: int, offset: int, source: int) -> Code:
    """``*(u64 *)(base + offset) = source``."""
    return _one(0x7B, base, source, offset)


def store_constant(base: int, offset: int, value: int) -> Code:
    """``*(u64 *)(base + offset) = value``."""
    return _one(0x7A, base, 0, offset, value)


def load_map(target: int, descriptor: int) -> Code:
    """``target`` = the map with that file descriptor: two instructions (BPF_LD_IMM64 with BPF_PSEUDO_MAP_FD)."""
    return _one(0x18, target, 1, 0, descriptor) + _one(0)


def call(helper: int) -> Code:
    """Calls a helper of the kernel: arguments in R1 to R5, result in R0."""
    return _one(0x85, immediate=helper)


def low_word(target: int) -> Code:
    """Keeps the low 32 bits."""
    return _one(0xBC, target, target)


def keep_bits(target: int, mask: int) -> Code:
    """``target &= mask``, a mask of 31 bits."""
    return _one(0x57, target, immediate=mask)


def if_zero(register: int, then: Sequence[Code], otherwise: Sequence[Code]) -> Code:
    """Runs ``then`` where the register is 0, else ``otherwise``."""
    first, second = b"".join(then), b"".join(otherwise)
    over_second = _one(0x05, offset=_length(first))
    return _one(0x15, register, 0, _length(second) + 1) + second + over_second + first


def if_bit(register: int, mask: int, then: Sequence[Code], otherwise: Sequence[Code]) -> Code:
    """Runs ``then`` where a bit of ``mask`` is set in the register, else ``otherwise``."""
    first, second = b"".join(then), b"".join(otherwise)
    over_second = _one(0x05, offset=_length(first))
    return _one(0x45, register, 0, _length(second) + 1, mask) + second + over_second + first


def end() -> Code:
    """``return 0``."""
    return constant(R0, 0) + _one(0x95)


def _length(code: Code) -> int:
    return len(code) // 8
