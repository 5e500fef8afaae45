"""An assembler for the BPF programs of our probes, whose text looks like C on registers, a statement a line.

  name:                       the target of ``goto name``
  if r1 > 5 goto name         unsigned; also ==, != and <=. ``unless r1 & 8 goto name``: if that bit is not set
  r1 = r2 - 8                 one operator at most; constants have 32 bits and are sign-extended
  r1 = [r2 + 16] & 255        [] is the 64-bit word at an address; ``fp`` is the end of the program's own stack
  [fp + -8] = [r6 + 0]        copied by way of r1, or of r2 if the address is in r1
  call map_lookup_elem(map 7, fp + -8)   a helper of the kernel: arguments go to r1, r2, …, the result to r0; ``map 7``
                              is the map with that file descriptor
  w0 = w0                     keep the low 32 bits of r0
  atomic_add [r8 + 16] r1; atomic_exchange_if_r0 [r8 + 0] r1: the word becomes r1 if it is r0; r0: what it was

Encodings: include/uapi/linux/bpf.h and bpf_common.h of Linux 6.6.
"""

from __future__ import annotations

import re
import struct
from itertools import chain
from typing import NamedTuple

_REGISTERS = {"fp": 10, **{f"r{number}": number for number in range(10)}}
_HELPERS = {
    "map_lookup_elem": 1,
    "map_update_elem": 2,
    "map_delete_elem": 3,
    "ktime_get_ns": 5,
    "get_current_pid_tgid": 14,
    "probe_read_user": 112,
    "send_signal_thread": 117,
    "ringbuf_output": 130,
    "get_attach_cookie": 174,
}
"""Helper → its number in enum bpf_func_id."""
_ASSIGN = {"=": 0xB7, "+=": 0x07, "-=": 0x17, "*=": 0x27, "|=": 0x47, "&=": 0x57, "<<=": 0x67, ">>=": 0x77}
_ASSIGN |= {"^=": 0xA7, "s>>=": 0xC7}
_COMPARE = {"==": 0x15, "!=": 0x55, ">": 0x25, "<=": 0xB5, "&": 0x45}
"""Operator → opcode for a register and a constant; with _BY_REGISTER for two registers."""
_BY_REGISTER = 0x08
_CALL = re.compile(r"call (\w+)\((.*)\)")
_JUMP = re.compile(r"(?:(if|unless) (\[.+?\]|\w+) (\S+) (\[.+?\]|\S+) )?goto (\w+)")
_ASSIGNMENT = re.compile(r"(\[.+?\]|\w+) (\S*=) (\[.+?\]|map \d+|\S+)(?: (\S+) (\S+))?")
_MEMORY = re.compile(r"\[(\w+) \+ (-?\d+)\]")


class _Instruction(NamedTuple):
    """An instruction (struct bpf_insn); ``label``: where it jumps to, which determines ``offset``."""

    opcode: int
    target: int = 0
    source: int = 0
    offset: int = 0
    immediate: int = 0
    label: str = ""


def assemble(program: str) -> bytes:
    """The machine code of a program."""
    labels: dict[str, int] = {}
    instructions: list[_Instruction] = []
    for statement in filter(None, map(str.strip, program.splitlines())):
        if statement.endswith(":"):
            labels[statement[:-1]] = len(instructions)
        else:
            instructions += _statement(statement)
    code = []
    for position, (opcode, target, source, offset, immediate, label) in enumerate(instructions):
        distance = labels[label] - position - 1 if label else offset
        code.append(struct.pack("<BBhi", opcode, source << 4 | target, distance, immediate))
    return b"".join(code)


def _statement(text: str) -> list[_Instruction]:
    """The instructions of a statement. Raises KeyError for an unknown name, ValueError for anything else."""
    if text == "return 0":
        return [_Instruction(0xB7), _Instruction(0x95)]
    if text == "w0 = w0":
        return [_Instruction(0xBC)]
    if call := _CALL.fullmatch(text):
        arguments = enumerate(call[2].split(", ") if call[2] else (), 1)
        loads = [_statement(f"r{number} = {value}") for number, value in arguments if value != f"r{number}"]
        return [*chain(*loads), _Instruction(0x85, immediate=_HELPERS[call[1]])]
    word, _, rest = text.partition(" ")
    if word in ("atomic_add", "atomic_exchange_if_r0"):  # BPF_ATOMIC with BPF_ADD, BPF_CMPXCHG
        memory, source = rest.rsplit(" ", 1)
        base, offset = _address(memory)
        return [_Instruction(0xDB, base, _REGISTERS[source], offset, 0 if word == "atomic_add" else 0xF1)]
    if jump := _JUMP.fullmatch(text):
        return _jump(*jump.groups())
    assignment = _ASSIGNMENT.fullmatch(text)
    if not assignment:
        raise ValueError(text)
    target, assign, value, operator, operand = assignment.groups()
    if target.startswith("["):
        return _store(target, value)
    register = _REGISTERS[target]
    if assign != "=":
        return [_operation(_ASSIGN[assign], register, value)]
    second = [_operation(_ASSIGN[f"{operator}="], register, operand)] if operator else []
    return [*_load(register, value), *second]


def _jump(word: str | None, left: str, operator: str, right: str, label: str) -> list[_Instruction]:
    """A jump: always (``word`` None), or "if" or "unless" a comparison is true. Words of memory are loaded into r1 and
    r2 before."""
    if not word:
        return [_Instruction(0x05, label=label)]
    loads: list[_Instruction] = []
    if left.startswith("["):
        loads, left = _load(1, left), "r1"
    if right.startswith("["):
        loads, right = [*loads, *_load(2, right)], "r2"
    jump = _operation(_COMPARE[operator], _REGISTERS[left], right)
    if word == "if":
        return [*loads, jump._replace(label=label)]
    return [*loads, jump._replace(offset=1), _Instruction(0x05, label=label)]  # the opposite of & has no opcode


def _store(target: str, value: str) -> list[_Instruction]:
    """Write a constant, a register or another word of memory to the word ``target``."""
    base, offset = _address(target)
    if value.startswith("["):
        scratch = 2 if base == 1 else 1
        return [*_load(scratch, value), _Instruction(0x7B, base, scratch, offset)]
    if value in _REGISTERS:
        return [_Instruction(0x7B, base, _REGISTERS[value], offset)]
    return [_Instruction(0x7A, base, 0, offset, int(value))]


def _load(register: int, value: str) -> list[_Instruction]:
    """Set a register to a word of memory, a map, another register or a constant."""
    if value.startswith("["):
        base, offset = _address(value)
        return [_Instruction(0x79, register, base, offset)]
    if value.startswith("map "):  # BPF_LD_IMM64 with BPF_PSEUDO_MAP_FD, which is two instructions long
        return [_Instruction(0x18, register, 1, 0, int(value[4:])), _Instruction(0)]
    return [_operation(_ASSIGN["="], register, value)]


def _operation(opcode: int, register: int, operand: str) -> _Instruction:
    """The instruction on a register and ``operand``, a register or a constant."""
    if operand in _REGISTERS:
        return _Instruction(opcode | _BY_REGISTER, register, _REGISTERS[operand])
    return _Instruction(opcode, register, immediate=int(operand))


def _address(memory: str) -> tuple[int, int]:
    """(register, offset) of ``[r1 + 8]``. Raises ValueError."""
    match = _MEMORY.fullmatch(memory)
    if not match:
        raise ValueError(memory)
    return _REGISTERS[match[1]], int(match[2])


def look_up(descriptor: int, key: int) -> str:
    """r0: the address of the map's value for the key at that stack offset, 0 without one."""
    return f"call map_lookup_elem(map {descriptor}, fp + {key})"


def put(descriptor: int, key: int, value: int) -> str:
    """Set the map's value for a key, both at stack offsets. r0: 0 on success."""
    return f"call map_update_elem(map {descriptor}, fp + {key}, fp + {value}, 0)"


ADD_ONE = """
        r1 = [r0 + 0] + 1
        [r0 + 0] = r1"""
"""Add 1 to the word at the address in r0."""


def add_to(descriptor: int, key: int, amount: int, name: str) -> str:
    """Add the word at the stack offset ``amount`` to the key's counter; go to "lost" if the map has no room for it.
    ``name`` makes the labels unique."""
    return f"""
        {look_up(descriptor, key)}
        if r0 != 0 goto has_{name}
        {put(descriptor, key, amount)}
        if r0 != 0 goto lost
        goto added_{name}
    has_{name}:
        r1 = [r0 + 0]
        r2 = [fp + {amount}]
        r1 += r2
        [r0 + 0] = r1
    added_{name}:"""


def count_lost(descriptor: int, zero: int) -> str:
    """The end of a program, with its labels "lost", where the map's counter is increased, and "end". ``zero``: stack
    offset of room for a key."""
    return f"""
    lost:
        [fp + {zero}] = 0
        {look_up(descriptor, zero)}
        if r0 == 0 goto end
        {ADD_ONE}
    end:
        return 0"""
