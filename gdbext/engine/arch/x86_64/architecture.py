"""The object that is x86-64.

Where a kernel probe is cheap on x86-64: the instructions that the kernel emulates instead of stepping over a copy.

Linux 6.18, arch/x86/kernel/uprobes.c: ``push_setup_xol_ops`` takes ``push r64`` with or without a REX prefix,
``branch_setup_xol_ops`` nops, direct jumps and calls, conditional jumps. Everything else costs a trap of its own.
Offsets of the registers: ``struct pt_regs``, arch/x86/include/uapi/asm/ptrace.h, 8 bytes each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.engine import arch
from gdbext.engine.arch.x86_64 import conventions, patterns
from gdbext.engine.arch.x86_64.conventions import ARGUMENTS, place
from gdbext.engine.arch.x86_64.decode import instructions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gdbext.engine.arch.instruction import Instruction

PROBING = arch.Probing(
    bpf_call=321,  # arch/x86/entry/syscalls/syscall_64.tbl
    perf_call=298,
    saved={
        "r15": 0,
        "r14": 8,
        "r13": 16,
        "r12": 24,
        "rbp": 32,
        "rbx": 40,
        "r11": 48,
        "r10": 56,
        "r9": 64,
        "r8": 72,
        "rax": 80,
        "rcx": 88,
        "rdx": 96,
        "rsi": 104,
        "rdi": 112,
        "rsp": 152,
    },
)


class X8664(arch.Architecture):
    """Linux on x86-64, System V ABI."""

    name = "x86_64"
    title = "x86-64"
    elf_machine = 62

    general_registers = conventions.GENERAL
    system_registers = conventions.SYSTEM
    register_sets: Mapping[int, tuple[str, ...]] = {1: conventions.USER_REGS}
    dwarf_registers = conventions.BY_DWARF_NUMBER
    return_column = conventions.RETURN_COLUMN
    program_counter = "rip"
    stack_pointer = "rsp"
    frame_pointer = "rbp"
    result_register = "rax"
    thread_register = "fs_base"
    syscall_register = "orig_rax"

    argument_registers = conventions.ARGUMENTS
    float_argument_registers = conventions.FLOAT_ARGUMENTS
    float_registers = arch.FloatRegisters(conventions.FLOAT_SET, conventions.FLOAT_SET_SIZE, conventions.FLOAT_AT)
    callee_saved = conventions.CALLEE_SAVED
    result_pointer = "rdi"
    call_pushes = 8
    frame_record = arch.FrameRecord(0, 8, 16)
    red_zone = 128  # psABI 3.2.2

    longest_instruction = 15
    longest_direct_call = 6
    breakpoint_code = b"\xcc"  # int3
    entry_marks = (patterns.ENDBR64,)
    padding = patterns.PADDING
    signal_frame = conventions.SIGNAL_FRAME
    probing = PROBING
    tls_relocations = arch.TlsRelocations(
        module_id=16, offset=18, descriptor=36
    )  # R_X86_64_DTPMOD64, _TPOFF64, _TLSDESC

    user_limit = 1 << 47
    kernel_mappings: Mapping[int, str] = {0xFFFFFFFFFF600000: "[vsyscall]"}  # arch/x86/include/uapi/asm/vsyscall.h

    syscall_names = conventions.NAMES

    def blocked_syscall(self, registers: Mapping[str, int], read: arch.ReadCode) -> tuple[int, tuple[int, ...]] | None:
        return conventions.blocked(registers, read)

    def restarted_syscall(self, number: int, read: arch.ReadCode, cfa: int) -> int:
        return conventions.restarted(number, read, cfa)

    def syscall_end(self, registers: Mapping[str, int], read: arch.ReadCode) -> int | None:
        return conventions.end_of_call(registers, read)

    def sleeping_registers(
        self, number: int, arguments: Sequence[int], stack_pointer: int, program_counter: int
    ) -> dict[str, int]:
        return conventions.sleeping(number, arguments, stack_pointer, program_counter)

    def stopped_at_trap(self, registers: Mapping[str, int], read: arch.ReadCode) -> bool:
        return read(registers.get("rip", 0) - 1, 1) == patterns.BREAKPOINT

    def decode(self, code: bytes, address: int) -> Iterator[Instruction]:
        return instructions(code, address)

    def place_arguments(self, arguments: Sequence[arch.Passing]) -> list[tuple[arch.Slot, ...]]:
        return place(arguments)

    def probe_offset(self, code: bytes, kept: int) -> int | None:
        return emulated_offset(code, instructions(code, 0), kept)

    def keeps_vectors(self, code: bytes) -> bool:
        return patterns.keeps_vectors(code)

    def follows_call(self, before: bytes) -> bool:
        return patterns.follows_call(before)

    def follows_call_by_pointer(self, before: bytes) -> bool:
        return patterns.follows_call_by_pointer(before)

    def called(self, before: bytes, returns_to: int) -> int:
        return patterns.called(before, returns_to)

    def called_slot(self, before: bytes, returns_to: int) -> int:
        return patterns.called_slot(before, returns_to)

    def return_address_offset(self, at: bytes, before: bytes) -> int | None:
        return patterns.return_address_offset(at, before)

    def stub_slot(self, code: bytes, address: int) -> int:
        return patterns.stub_slot(code, address)

    def stubs(self, table: bytes, address: int) -> Iterator[tuple[int, int]]:
        return patterns.stubs(table, address)

    def direct_calls(self, code: bytes, targets: Collection[int]) -> Iterator[tuple[int, int]]:
        return patterns.direct_calls(code, targets)

    def slot_calls(self, code: bytes, slots: Collection[int]) -> Iterator[tuple[int, int]]:
        return patterns.slot_calls(code, slots)

    def table_accesses(self, code: bytes, displacement: int, shift: int, within: int) -> Iterator[int]:
        return patterns.table_accesses(code, displacement, shift, within)

    def loaded_member(self, code: bytes) -> arch.LoadedMember | None:
        return patterns.loaded_member(code)

    def threads_or_global(self, code: bytes, address: int) -> arch.ThreadsOrGlobal | None:
        return patterns.threads_or_global(code, address)

    def has_operand(self, code: bytes, value: int) -> bool:
        return value.to_bytes(4, "little", signed=value < 0) in code

    def address_uses(self, code: bytes, address: int) -> Iterator[arch.AddressUse]:
        return patterns.address_uses(code, address)


ARCHITECTURE = X8664()

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
        return bool(one.target)
    bare = code[1:] if 0x40 <= code[0] <= 0x4F else code
    if 0x50 <= bare[0] <= 0x57:
        return len(bare) == 1
    return bare == b"\x90" or bare[:2] == b"\x0f\x1f"
