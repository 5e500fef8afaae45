"""What is handed to the kernel: the places where a probe is cheap, and programs whose jumps lead where they should."""

from __future__ import annotations

import pytest

from gdbext.arch import registry
from gdbext.probes import bpf_program as bpf

X86_64 = registry.by_name("x86_64")


@pytest.mark.parametrize(
    ("code", "kept", "offset"),
    [
        ("55 4889e5 c3", 2, 0),  # push %rbp
        ("4154 c3", 2, 0),  # push %r12
        ("4889f0 4889c2 4154 c3", 2, 6),  # mov %rsi,%rax; mov %rax,%rdx; push %r12
        ("f30f1efa 55 c3", 2, 4),  # endbr64; push %rbp
        ("4889d6 55 c3", 2, None),  # mov %rdx,%rsi takes the second argument away
        ("4889d6 55 c3", 1, 3),  # … which is not wanted here
        ("c3", 1, None),  # ret
        ("ffe0", 1, None),  # jmp *%rax is stepped over, and what follows is not reached
        ("e900000000", 1, 0),  # jmp rel32
        ("0f1f4000 c3", 1, 0),  # nopl 0(%rax)
    ],
)
def test_the_first_cheap_place_that_has_the_arguments(code: str, kept: int, offset: int | None) -> None:
    assert X86_64.probe_offset(bytes.fromhex(code.replace(" ", "")), kept) == offset


def run(code: bytes, register: int, value: int) -> list[int]:
    """The constants that a program loads into R3, in order: a little interpreter of what the jumps do."""
    registers = {register: value}
    loaded, at = [], 0
    while at < len(code) // 8:
        opcode, targets, low, high, *rest = code[8 * at : 8 * at + 8]
        offset, immediate = int.from_bytes((low, high), "little", signed=True), int.from_bytes(bytes(rest), "little")
        at += 1
        if opcode == 0x05:
            at += offset
        elif opcode == 0x15:
            at += offset if registers[targets & 15] == immediate else 0
        elif opcode == 0x45:
            at += offset if registers[targets & 15] & immediate else 0
        elif opcode == 0xB7:
            loaded.append(immediate)
    return loaded


@pytest.mark.parametrize(("value", "expected"), [(0, [1, 2, 9]), (5, [3, 9])])
def test_if_zero(value: int, expected: list[int]) -> None:
    then, otherwise = [bpf.constant(bpf.R3, 1), bpf.constant(bpf.R3, 2)], [bpf.constant(bpf.R3, 3)]
    assert run(bpf.if_zero(bpf.R7, then, otherwise) + bpf.constant(bpf.R3, 9), bpf.R7, value) == expected


@pytest.mark.parametrize(("value", "expected"), [(4, [1, 9]), (3, [2, 3, 9]), (7, [1, 9])])
def test_if_bit(value: int, expected: list[int]) -> None:
    then, otherwise = [bpf.constant(bpf.R3, 1)], [bpf.constant(bpf.R3, 2), bpf.constant(bpf.R3, 3)]
    assert run(bpf.if_bit(bpf.R7, 4, then, otherwise) + bpf.constant(bpf.R3, 9), bpf.R7, value) == expected


def test_every_instruction_is_eight_bytes() -> None:
    for code in (bpf.move(1, 2), bpf.load(1, 6, 112), bpf.store(10, -8, 1), bpf.call(1), bpf.keep_bits(7, 3)):
        assert len(code) == 8
    assert len(bpf.load_map(1, 5)) == 16
