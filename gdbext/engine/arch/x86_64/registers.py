"""Names, numbers and places of x86-64's registers.

Sources: System V ABI, AMD64 supplement 1.0, figures 3.4 (use of registers) and 3.36 (DWARF numbers); glibc 2.36,
sys/user.h (``struct user_regs_struct``); Linux ``arch/x86/include/uapi/asm/sigcontext.h`` and ``ucontext.h``.

Where arguments are passed on x86-64: System V ABI, AMD64 Architecture Processor Supplement 1.0, section 3.2.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.engine.arch.base import Passing, SignalFrame, Slot

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


_INTEGER_REGISTERS = 6
_FLOAT_REGISTERS = 8
_WORD = 8
_NEEDS = {
    Passing.WORD: (1, 0),
    Passing.TWO_WORDS: (2, 0),
    Passing.FLOAT: (0, 1),
    Passing.FLOAT_AND_WORD: (1, 1),
    Passing.WORD_AND_FLOAT: (1, 1),
}
"""Integer and floating-point registers that an argument takes; all of them, or none."""
_WORDS = {
    Passing.WORD: 1, Passing.TWO_WORDS: 2, Passing.FLOAT: 1, Passing.FLOAT_AND_WORD: 2, Passing.WORD_AND_FLOAT: 2,
    Passing.MEMORY: 3,
}  # fmt: skip
"""Words on the stack of one that does not fit into registers."""


def place(arguments: Sequence[Passing]) -> list[tuple[Slot, ...]]:
    """The words of each argument, in order."""
    integers = floats = stacked = 0
    found: list[tuple[Slot, ...]] = []
    for passing in arguments:
        needs = _NEEDS.get(passing)
        if needs is None or integers + needs[0] > _INTEGER_REGISTERS or floats + needs[1] > _FLOAT_REGISTERS:
            count = _WORDS[passing]
            found.append(tuple(Slot(offset=stacked + _WORD * each) for each in range(count)))
            stacked += _WORD * count
            continue
        in_floats = tuple(Slot(float_register=floats + each) for each in range(needs[1]))
        in_integers = tuple(Slot(integers + each) for each in range(needs[0]))
        float_last = passing is Passing.WORD_AND_FLOAT
        found.append(in_integers + in_floats if float_last else in_floats + in_integers)
        integers, floats = integers + needs[0], floats + needs[1]
    return found
