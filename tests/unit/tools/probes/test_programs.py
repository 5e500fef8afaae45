"""What is handed to the kernel: the places where a probe is cheap, and programs whose jumps lead where they should."""

from __future__ import annotations

import struct

import pytest

from gdbext.engine.arch import architectures
from gdbext.tools.probes.bpf import bpf_program as bpf

X86_64 = architectures.by_name("x86_64")


@pytest.mark.parametrize(
    ("code", "kept", "offset"),
    [
        ("55 4889e5 c3", 2, 0),  # push %rbp
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


def test_jumps_lead_to_their_labels() -> None:
    code = bpf.assemble(
        (
            bpf.jump_if_equal("end", bpf.B7, 5),
            *bpf.jump_unless_bit("end", bpf.B7, 4),
            bpf.load_map(bpf.B1, 3),
            bpf.Label("again"),
            bpf.jump("again"),
            bpf.Label("end"),
            bpf.end(),
        )
    )
    fields = list(struct.iter_unpack("<BBhi", code))
    jumps = {at: distance for at, (opcode, _, distance, _) in enumerate(fields) if opcode & 7 == 5 and opcode != 0x95}
    # from behind each jump: over the rest to the end, over the next instruction, to the end, and back to itself
    assert jumps == {0: 5, 1: 1, 2: 3, 5: -1}
