"""Names, numbers and places of x86-64's registers.

Sources: System V ABI, AMD64 supplement 1.0, figures 3.4 (use of registers) and 3.36 (DWARF numbers); glibc 2.36,
sys/user.h (``struct user_regs_struct``); Linux ``arch/x86/include/uapi/asm/sigcontext.h`` and ``ucontext.h``.
"""

from __future__ import annotations

from gdbext.arch.base import SignalFrame

GENERAL = (
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip",
)  # fmt: skip
SYSTEM = ("eflags", "orig_rax", "fs_base", "gs_base")
"""gdb's names; the last three exist on Linux only, and a gdbserver may lack them."""

BY_ENCODING = (
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
"""General registers by their number in instructions."""

BY_DWARF_NUMBER = (
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip",
)  # fmt: skip
RETURN_COLUMN = 16

FLOATS = tuple(f"xmm{number}" for number in range(16))
"""Vector registers by their number in instructions; doubles are in their low 8 bytes."""
FLOAT_ARGUMENTS = FLOATS[:8]
FLOAT_SET = 2
"""NT_PRFPREG: ``struct user_fpregs_struct``, in which ``xmm_space`` has 16 bytes for each register."""
FLOAT_SET_SIZE = 512
FLOAT_AT = {name: 160 + 16 * number for number, name in enumerate(FLOATS)}

ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
SYSCALL_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")

USER_REGS = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
    "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip
"""The fields of ``struct user_regs_struct`` in order."""

SIGNAL_FRAME = SignalFrame(
    # mov $15, %rax; syscall: what every C library's restorer consists of (__NR_rt_sigreturn is 15).
    trampoline=bytes.fromhex("48c7c00f0000000f05"),
    entries=(0, 7),
    # struct ucontext: uc_flags 8, uc_link 8, uc_stack 24 bytes, then uc_mcontext.
    context=40,
    saved={
        "r8": 0, "r9": 8, "r10": 16, "r11": 24, "r12": 32, "r13": 40, "r14": 48, "r15": 56, "rdi": 64, "rsi": 72,
        "rbp": 80, "rbx": 88, "rdx": 96, "rax": 104, "rcx": 112, "rsp": 120, "rip": 128,
    },
)  # fmt: skip
"""``struct sigcontext_64`` behind the return address into the trampoline."""
