"""BPF programs as bytes: the few instructions that our probes are made of.

Encodings: include/uapi/linux/bpf.h and bpf_common.h of Linux 6.6; helpers by their numbers in enum bpf_func_id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple, Union

B0, B1, B2, B3, B4, B6, B7, B8, B9, FRAME = 0, 1, 2, 3, 4, 6, 7, 8, 9, 10

MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, TIME, CURRENT_PID_TGID = 1, 2, 3, 5, 14
"""BPF_FUNC_map_lookup_elem, _map_update_elem, _map_delete_elem, _ktime_get_ns, _get_current_pid_tgid."""
READ_USER, SEND_SIGNAL_THREAD, RING_OUTPUT, ATTACH_COOKIE = 112, 117, 130, 174
"""Numbers of BPF_FUNC_probe_read_user, _send_signal_thread, _ringbuf_output, _get_attach_cookie."""

Code = bytes


def _one(opcode: int, target: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> Code:
    return struct.pack("<BBhi", opcode, source << 4 | target, offset, immediate)


def move(target: int, source: int) -> Code:
    """Copy a register: ``target = source``."""
    return _one(0xBF, target, source)


def constant(target: int, value: int) -> Code:
    """``target = value``, 32 bits, sign-extended."""
    return _one(0xB7, target, immediate=value)


def increase(target: int, value: int) -> Code:
    """Add a constant: ``target += value``."""
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


def add_atomically(base: int, offset: int, source: int) -> Code:
    """``*(u64 *)(base + offset) += source``, in one step (BPF_ATOMIC with BPF_ADD)."""
    return _one(0xDB, base, source, offset, 0)


def exchange_if_equal(base: int, offset: int, source: int) -> Code:
    """``*(u64 *)(base + offset) = source`` if B0 stands there, in one step; B0: what stood there (BPF_CMPXCHG)."""
    return _one(0xDB, base, source, offset, 0xF1)


def load_map(target: int, descriptor: int) -> Code:
    """``target`` = the map with that file descriptor: two instructions (BPF_LD_IMM64 with BPF_PSEUDO_MAP_FD)."""
    return _one(0x18, target, 1, 0, descriptor) + _one(0)


def call(helper: int) -> Code:
    """Calls a helper of the kernel: arguments in B1 to B5, result in B0."""
    return _one(0x85, immediate=helper)


def set_bits(target: int, mask: int) -> Code:
    """``target |= mask``, a mask of 31 bits."""
    return _one(0x47, target, immediate=mask)


def low_word(target: int) -> Code:
    """Keeps the low 32 bits."""
    return _one(0xBC, target, target)


def keep_bits(target: int, mask: int) -> Code:
    """``target &= mask``, a mask of 31 bits."""
    return _one(0x57, target, immediate=mask)


def plus(target: int, source: int) -> Code:
    """Add a register: ``target += source``."""
    return _one(0x0F, target, source)


def subtract(target: int, source: int) -> Code:
    """Subtract a register: ``target -= source``."""
    return _one(0x1F, target, source)


def shift_left(target: int, bits: int) -> Code:
    """Shift a register: ``target <<= bits``."""
    return _one(0x67, target, immediate=bits)


def shift_right(target: int, bits: int) -> Code:
    """``target >>= bits``, filling with zeros."""
    return _one(0x77, target, immediate=bits)


def shift_right_by(target: int, source: int) -> Code:
    """``target >>= source``, filling with zeros."""
    return _one(0x7F, target, source)


def signed_shift_right(target: int, bits: int) -> Code:
    """``target >>= bits``, keeping the sign."""
    return _one(0xC7, target, immediate=bits)


def end() -> Code:
    """End the program: ``return 0``."""
    return constant(B0, 0) + _one(0x95)


# --- jumps to labels -----------------------------------------------------------------------------


class Label(NamedTuple):
    """A place that jumps lead to."""

    name: str


class Jump(NamedTuple):
    """A jump to a label, always or where a comparison is true."""

    label: str
    opcode: int
    register: int = 0
    source: int = 0
    immediate: int = 0


Part = Union[Code, Label, Jump]


def jump(label: str) -> Jump:
    """Jump to the label in any case."""
    return Jump(label, 0x05)


def jump_if_equal(label: str, register: int, value: int) -> Jump:
    """Jump where the register has that value (31 bits)."""
    return Jump(label, 0x15, register, immediate=value)


def jump_unless_equal(label: str, register: int, value: int) -> Jump:
    """Jump where the register has another value (31 bits)."""
    return Jump(label, 0x55, register, immediate=value)


def jump_if_same(label: str, register: int, other: int) -> Jump:
    """Jump where both registers have the same value."""
    return Jump(label, 0x1D, register, other)


def jump_if_above(label: str, register: int, value: int) -> Jump:
    """Jump where the register, unsigned, is greater than the value (31 bits)."""
    return Jump(label, 0x25, register, immediate=value)


def jump_unless_above(label: str, register: int, other: int) -> Jump:
    """Jump where the register, unsigned, is at most the other one."""
    return Jump(label, 0xBD, register, other)


def jump_unless_bit(label: str, register: int, mask: int) -> tuple[Jump, Jump]:
    """Jump where no bit of the mask (31 bits) is set; two jumps, since there is only the opposite."""
    return Jump("", 0x45, register, immediate=mask), jump(label)


def assemble(parts: Iterable[Part]) -> Code:
    """The program, with every jump's distance filled in. A jump to "" leads over the next instruction."""
    placed, labels, at = [], {}, 0
    for part in parts:
        if isinstance(part, Label):
            labels[part.name] = at
            continue
        placed.append((at, part))
        at += 1 if isinstance(part, Jump) else _length(part)
    return b"".join(_placed(part, position, labels) for position, part in placed)


def _placed(part: Code | Jump, position: int, labels: dict[str, int]) -> Code:
    if not isinstance(part, Jump):
        return part
    distance = labels[part.label] - position - 1 if part.label else 1
    return _one(part.opcode, part.register, part.source, distance, part.immediate)


def _length(code: Code) -> int:
    return len(code) // 8


# --- what is needed more than once ---------------------------------------------------------------


def look_up(descriptor: int, key: int) -> list[Part]:
    """B0: the map's value for the key that is on the stack, or 0."""
    return [load_map(B1, descriptor), move(B2, FRAME), increase(B2, key), call(MAP_LOOKUP)]


def read_user(into: int) -> list[Part]:
    """The word at the address in B3 to the stack; zeros where it cannot be read."""
    return [move(B1, FRAME), increase(B1, into), constant(B2, 8), call(READ_USER)]


def put(descriptor: int, key: int, value: int) -> list[Part]:
    """Sets the map's value for a key, both on the stack. B0: 0 where that went well."""
    return [
        load_map(B1, descriptor),
        move(B2, FRAME),
        increase(B2, key),
        move(B3, FRAME),
        increase(B3, value),
        constant(B4, 0),
        call(MAP_UPDATE),
    ]


def add_to(descriptor: int, key: int, amount: int, name: str) -> list[Part]:
    """Adds the word on the stack to the key's counter; jumps to "lost" where there is no room for it. ``name`` tells
    its labels from those of others."""
    known, done = f"{name} is known", f"{name} is added"
    return [
        *look_up(descriptor, key),
        jump_unless_equal(known, B0, 0),
        *put(descriptor, key, amount),
        jump_unless_equal("lost", B0, 0),
        jump(done),
        Label(known),
        load(B1, B0, 0),
        load(B2, FRAME, amount),
        plus(B1, B2),
        store(B0, 0, B1),
        Label(done),
    ]


def lose(descriptor: int, zero: int) -> list[Part]:
    """Count one more as lost at the label "lost". Jumps to "end" where even that fails."""
    return [
        Label("lost"),
        store_constant(FRAME, zero, 0),
        *look_up(descriptor, zero),
        jump_if_equal("end", B0, 0),
        load(B1, B0, 0),
        increase(B1, 1),
        store(B0, 0, B1),
    ]
