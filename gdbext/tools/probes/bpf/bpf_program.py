"""BPF programs as bytes: the few instructions that our probes are made of.

Encodings: include/uapi/linux/bpf.h and bpf_common.h of Linux 6.6; helpers by their numbers in enum bpf_func_id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Union

B0, B1, B2, B3, B4, B6, B7, B8, B9, FRAME = 0, 1, 2, 3, 4, 6, 7, 8, 9, 10
"""Registers by their numbers; offsets of what is on the program's stack count from FRAME, downwards."""
MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, TIME, CURRENT_PID_TGID = 1, 2, 3, 5, 14
"""BPF_FUNC_map_lookup_elem, _map_update_elem, _map_delete_elem, _ktime_get_ns, _get_current_pid_tgid."""
READ_USER, SEND_SIGNAL_THREAD, RING_OUTPUT, ATTACH_COOKIE = 112, 117, 130, 174
"""BPF_FUNC_probe_read_user, _send_signal_thread, _ringbuf_output, _get_attach_cookie."""

Code = bytes
_InstructionOfTwo = Callable[[int, int], Code]
"""(target register, source register or constant) → the instruction."""


def _instruction(opcode: int, target: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> Code:
    return struct.pack("<BBhi", opcode, source << 4 | target, offset, immediate)


def _with_constant(opcode: int) -> _InstructionOfTwo:
    return lambda target, value: _instruction(opcode, target, immediate=value)


move: _InstructionOfTwo = partial(_instruction, 0xBF)
plus: _InstructionOfTwo = partial(_instruction, 0x0F)
subtract: _InstructionOfTwo = partial(_instruction, 0x1F)
shift_right_by: _InstructionOfTwo = partial(_instruction, 0x7F)
"""Fills with zeros."""
constant = _with_constant(0xB7)
"""``target = value``, 32 bits, sign-extended."""
increase = _with_constant(0x07)
set_bits = _with_constant(0x47)
"""``target |= value``, 31 bits."""
keep_bits = _with_constant(0x57)
"""``target &= value``, 31 bits."""
shift_left = _with_constant(0x67)
shift_right = _with_constant(0x77)
"""Fills with zeros."""
signed_shift_right = _with_constant(0xC7)
load: Callable[[int, int, int], Code] = partial(_instruction, 0x79)
"""(target, base, offset): ``target = *(u64 *)(base + offset)``."""


def store(base: int, offset: int, source: int) -> Code:
    """``*(u64 *)(base + offset) = source``."""
    return _instruction(0x7B, base, source, offset)


def store_constant(base: int, offset: int, value: int) -> Code:
    """``*(u64 *)(base + offset) = value``."""
    return _instruction(0x7A, base, 0, offset, value)


def add_atomically(base: int, offset: int, source: int) -> Code:
    """``*(u64 *)(base + offset) += source``, in one step (BPF_ATOMIC with BPF_ADD)."""
    return _instruction(0xDB, base, source, offset, 0)


def exchange_if_equal(base: int, offset: int, source: int) -> Code:
    """``*(u64 *)(base + offset) = source`` if its value is B0, in one step; B0: the old value (BPF_CMPXCHG)."""
    return _instruction(0xDB, base, source, offset, 0xF1)


def copy_word(base: int, offset: int, source_base: int, source_offset: int) -> Code:
    """``*(u64 *)(base + offset) = *(u64 *)(source_base + source_offset)``, by B1."""
    return load(B1, source_base, source_offset) + store(base, offset, B1)


def address(target: int, base: int, offset: int) -> Code:
    """``target = base + offset``."""
    return move(target, base) + increase(target, offset)


def load_map(target: int, descriptor: int) -> Code:
    """``target`` = the map with that file descriptor: two instructions (BPF_LD_IMM64 with BPF_PSEUDO_MAP_FD)."""
    return _instruction(0x18, target, 1, 0, descriptor) + _instruction(0)


def call(helper: int) -> Code:
    """Call a helper of the kernel: arguments in B1 to B5, result in B0."""
    return _instruction(0x85, immediate=helper)


def low_word(target: int) -> Code:
    """Keep the low 32 bits."""
    return _instruction(0xBC, target, target)


def end() -> Code:
    """End the program: ``return 0``."""
    return constant(B0, 0) + _instruction(0x95)


class Label(NamedTuple):
    """The target of jumps."""

    name: str


class Jump(NamedTuple):
    """A jump to a label, always or where a comparison is true."""

    label: str
    opcode: int
    register: int = 0
    source: int = 0
    immediate: int = 0


Part = Union[Code, Label, Jump]


def _compared_with_constant(opcode: int) -> Callable[[str, int, int], Jump]:
    """A function (label, register, value) → jump to the label by comparing the register, unsigned, with 31 bits."""
    return lambda label, register, value: Jump(label, opcode, register, immediate=value)


def jump(label: str) -> Jump:
    """Jump to the label in any case."""
    return Jump(label, 0x05)


jump_if_equal = _compared_with_constant(0x15)
jump_unless_equal = _compared_with_constant(0x55)
jump_if_above = _compared_with_constant(0x25)


def jump_if_same(label: str, register: int, other: int) -> Jump:
    """Jump where both registers have the same value."""
    return Jump(label, 0x1D, register, other)


def jump_unless_above(label: str, register: int, other: int) -> Jump:
    """Jump where the register, unsigned, is at most the other one."""
    return Jump(label, 0xBD, register, other)


def jump_unless_bit(label: str, register: int, mask: int) -> tuple[Jump, Jump]:
    """Jump where no bit of the mask (31 bits) is set; two jumps, since only the opposite has an opcode."""
    return Jump("", 0x45, register, immediate=mask), jump(label)


def assemble(parts: Iterable[Part]) -> Code:
    """The program, with every jump's distance filled in. A jump to "" skips the next instruction."""
    placed: list[tuple[int, Code | Jump]] = []
    labels, position = {}, 0
    for part in parts:
        if isinstance(part, Label):
            labels[part.name] = position
        else:
            placed.append((position, part))
            position += 1 if isinstance(part, Jump) else len(part) // 8
    code = []
    for position, part in placed:
        if isinstance(part, Jump):
            distance = labels[part.label] - position - 1 if part.label else 1
            part = _instruction(part.opcode, part.register, part.source, distance, part.immediate)
        code.append(part)
    return b"".join(code)


def look_up(descriptor: int, key: int) -> list[Part]:
    """B0: the address of the map's value for the key at that stack offset, or 0."""
    return [load_map(B1, descriptor), address(B2, FRAME, key), call(MAP_LOOKUP)]


def read_user(target: int) -> list[Part]:
    """Copy the word at the address in B3 to a stack offset; zeros if it cannot be read."""
    return [address(B1, FRAME, target), constant(B2, 8), call(READ_USER)]


def put(descriptor: int, key: int, value: int | None = None) -> list[Part]:
    """Set the map's value for a key, both at stack offsets; without ``value``, to the data at B3. B0: 0 on success."""
    return [
        b"" if value is None else address(B3, FRAME, value),
        load_map(B1, descriptor),
        address(B2, FRAME, key),
        constant(B4, 0),
        call(MAP_UPDATE),
    ]


def add_one(address: int) -> list[Part]:
    """Add 1 to the word at the address in a register."""
    return [load(B1, address, 0), increase(B1, 1), store(address, 0, B1)]


def add_to(descriptor: int, key: int, amount: int, name: str) -> list[Part]:
    """Add the word at the stack offset ``amount`` to the key's counter; jump to "lost" if there is no room for it.
    ``name`` makes the labels unique."""
    has_counter, done = f"{name} has a counter", f"{name} is added"
    return [
        *look_up(descriptor, key),
        jump_unless_equal(has_counter, B0, 0),
        *put(descriptor, key, amount),
        jump_unless_equal("lost", B0, 0),
        jump(done),
        Label(has_counter),
        load(B1, B0, 0),
        load(B2, FRAME, amount),
        plus(B1, B2),
        store(B0, 0, B1),
        Label(done),
    ]


def count_lost(descriptor: int, zero: int) -> list[Part]:
    """At the label "lost": count one more, then continue at "end"; ``zero``: stack offset of room for a key."""
    return [
        Label("lost"),
        store_constant(FRAME, zero, 0),
        *look_up(descriptor, zero),
        jump_if_equal("end", B0, 0),
        *add_one(B0),
        Label("end"),
        end(),
    ]
