"""What is true of x86-64 only: register numbers, calls, and the frame that a signal leaves on the stack.

Sources: System V ABI, AMD64 supplement 1.0, figure 3.36 (DWARF register numbers) and 3.2.1 (registers that belong to
the caller); Linux ``arch/x86/include/uapi/asm/sigcontext.h`` and ``ucontext.h`` (signal frame).
"""

from __future__ import annotations

from collections.abc import Mapping

DWARF_REGISTERS = (
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip",
)  # fmt: skip
"""Register names by DWARF number; 16 is the return address column."""

DWARF_RSP = 7
DWARF_RETURN_ADDRESS = 16

CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")
"""Registers that a function gives back unchanged; with rsp and rip all that is known of a caller."""

SIGRETURN = bytes.fromhex("48c7c00f0000000f05")
"""``mov $15, %rax; syscall``: what every C library's restorer consists of (kernel: ``__NR_rt_sigreturn`` is 15)."""
SIGRETURN_SYSCALL = 7
"""Where the system call instruction stands inside SIGRETURN."""

SIGCONTEXT_OFFSET = 40
"""From the stack pointer at the trampoline (``struct ucontext``) to its ``uc_mcontext``: uc_flags 8, uc_link 8,
uc_stack 24 bytes."""
SIGCONTEXT: Mapping[str, int] = {
    "r8": 0, "r9": 8, "r10": 16, "r11": 24, "r12": 32, "r13": 40, "r14": 48, "r15": 56, "rdi": 64, "rsi": 72,
    "rbp": 80, "rbx": 88, "rdx": 96, "rax": 104, "rcx": 112, "rsp": 120, "rip": 128,
}  # fmt: skip
"""Offsets in ``struct sigcontext_64``."""

_LONGEST_CALL = 8


def follows_call(before: bytes) -> bool:
    """True when the last bytes of ``before`` can be a call instruction, so that a return address may follow them.

    Looks at ``call rel32`` (e8) and all forms of ``call r/m64`` (ff /2).
    """
    if len(before) >= 5 and before[-5] == 0xE8:
        return True
    return any(
        len(before) >= size and before[-size] == 0xFF and _is_indirect_call(before[-size:])
        for size in range(2, _LONGEST_CALL)
    )


def _is_indirect_call(code: bytes) -> bool:
    """True when ``code`` (ff, ModRM, …) is one complete ``call r/m64``."""
    modrm = code[1]
    mode, operation, base = modrm >> 6, modrm >> 3 & 7, modrm & 7
    if operation != 2:
        return False
    size = 2
    if mode == 3:
        return len(code) == size
    if base == 4:
        if len(code) < 3:
            return False
        size += 1
        base = code[2] & 7
    if mode == 0:
        size += 4 if base == 5 else 0
    else:
        size += 1 if mode == 1 else 4
    return len(code) == size


ENDBR64 = b"\xf3\x0f\x1e\xfa"
"""What a function, or any other target of an indirect branch, may begin with."""
_FRAME_SETUP = (b"\x48\x89\xe5", b"\x48\x8b\xec")  # both encodings of mov %rsp, %rbp


def return_address_offset(at: bytes, before: bytes) -> int | None:
    """Where the return address is, relative to rsp, if pc is at the edge of a function or in a jump stub.

    ``at`` is the code at pc, ``before`` the code before it. Known are the prologue ``push %rbp; mov %rsp,%rbp``,
    ``ret``, and the stubs of a procedure linkage table (``jmp *GOT``, ``push $index; jmp PLT0``, PLT0 itself), all
    with or without ``endbr64`` and ``bnd``. None otherwise. The caller must check what it finds there.
    """
    code = at[4:] if at.startswith(ENDBR64) else at
    if code[:1] == b"\x55" and code[1:4] in _FRAME_SETUP:
        return 0
    if before[-1:] == b"\x55" and at[:3] in _FRAME_SETUP:
        return 8
    bare = code[1:] if code[:1] == b"\xf2" else code
    if bare[:2] == b"\xff\x25":
        return 16 if before[-6:-4] == b"\xff\x35" else 0
    if bare[:2] == b"\xff\x35":
        return 8
    if code[:1] == b"\x68" and code[5:].lstrip(b"\xf2")[:1] == b"\xe9":
        return 0
    if bare[:1] == b"\xe9" and before[-5:-4] == b"\x68":
        return 8
    return 0 if code[:1] == b"\xc3" else None
