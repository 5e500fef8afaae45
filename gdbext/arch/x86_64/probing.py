"""Where a kernel probe is cheap on x86-64: the instructions that the kernel emulates instead of stepping over a copy.

Linux 6.18, arch/x86/kernel/uprobes.c: ``push_setup_xol_ops`` takes ``push r64`` with or without a REX prefix,
``branch_setup_xol_ops`` nops, direct jumps and calls, conditional jumps. Everything else costs a trap of its own.
Offsets of the registers: ``struct pt_regs``, arch/x86/include/uapi/asm/ptrace.h, 8 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable

from gdbext.arch.base import Probing
from gdbext.arch.instruction import Instruction
from gdbext.arch.x86_64.registers import ARGUMENTS

PROBING = Probing(
    bpf_call=321,  # arch/x86/entry/syscalls/syscall_64.tbl
    perf_call=298,
    saved={
        "r15": 0, "r14": 8, "r13": 16, "r12": 24, "rbp": 32, "rbx": 40, "r11": 48, "r10": 56, "r9": 64, "r8": 72,
        "rax": 80, "rcx": 88, "rdx": 96, "rsi": 104, "rdi": 112, "rsp": 152,
    },
)
_BRANCHES = frozenset(("call", "jmp", "jcc"))


def emulated_offset(code: bytes, instructions: Iterable[Instruction], kept: int) -> int | None:
    """Offset of the first emulated instruction that is reached with the first ``kept`` arguments in their registers,
    and with the stack pointer where the call left it."""
    arguments = frozenset((*ARGUMENTS[:kept], "rsp"))
    start = None
    for one in instructions:
        start = one.address if start is None else start
        at = one.address - start
        if _is_emulated(one, code[at : at + one.length]):
            return at
        if one.kind in _BRANCHES or one.kind in ("ret", "trap") or one.writes & arguments:
            return None
    return None


def _is_emulated(one: Instruction, code: bytes) -> bool:
    if one.kind in _BRANCHES:
        return one.target is not None
    bare = code[1:] if 0x40 <= code[0] <= 0x4F else code
    if 0x50 <= bare[0] <= 0x57:
        return len(bare) == 1
    return bare == b"\x90" or bare[:2] == b"\x0f\x1f"
