"""The object that is x86-64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.engine import arch
from gdbext.engine.arch.x86_64 import conventions, patterns
from gdbext.engine.arch.x86_64.decode import instructions

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    spin_hint = b"\xf3\x90"  # pause
    stack_pointer = "rsp"
    frame_pointer = "rbp"
    result_register = "rax"
    thread_register = "fs_base"
    syscall_register = "orig_rax"

    argument_registers = conventions.ARGUMENTS
    float_argument_registers = conventions.FLOAT_ARGUMENTS
    float_registers = conventions.FLOAT_REGISTERS
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
    probing = arch.Probing(
        bpf_call=321,  # arch/x86/entry/syscalls/syscall_64.tbl
        perf_call=298,
        # struct pt_regs begins like struct user_regs_struct
        saved={
            name: 8 * number for number, name in enumerate(conventions.USER_REGS) if name in conventions.GENERAL[:-1]
        },
    )
    # R_X86_64_DTPMOD64, _TPOFF64, _TLSDESC
    tls_relocations = arch.TlsRelocations(module_id=16, offset=18, descriptor=36)

    user_limit = 1 << 47
    kernel_mappings: Mapping[int, str] = {0xFFFFFFFFFF600000: "[vsyscall]"}  # arch/x86/include/uapi/asm/vsyscall.h

    syscall_names = conventions.NAMES
    other_syscall_names = conventions.REFUSED_NAMES

    blocked_syscall = staticmethod(conventions.blocked_syscall)
    restarted_syscall = staticmethod(conventions.restarted_syscall)
    syscall_end = staticmethod(conventions.syscall_end)
    sleeping_registers = staticmethod(conventions.sleeping_registers)
    place_arguments = staticmethod(conventions.place_arguments)
    decode = staticmethod(instructions)
    keeps_vectors = staticmethod(patterns.keeps_vectors)
    follows_call = staticmethod(patterns.follows_call)
    follows_call_by_pointer = staticmethod(patterns.follows_call_by_pointer)
    call_target = staticmethod(patterns.call_target)
    call_slot = staticmethod(patterns.call_slot)
    return_address_offset = staticmethod(patterns.return_address_offset)
    stub_slot = staticmethod(patterns.stub_slot)
    stubs = staticmethod(patterns.stubs)
    direct_calls = staticmethod(patterns.direct_calls)
    slot_calls = staticmethod(patterns.slot_calls)
    table_accesses = staticmethod(patterns.table_accesses)
    loaded_member = staticmethod(patterns.loaded_member)
    threads_or_global = staticmethod(patterns.threads_or_global)
    address_uses = staticmethod(patterns.address_uses)
    probe_offset = staticmethod(patterns.probe_offset)

    def stopped_at_trap(self, registers: Mapping[str, int], read: arch.ReadCode) -> bool:
        return read(registers.get("rip", 0) - 1, 1) == self.breakpoint_code

    def is_behind_syscall(self, read: arch.ReadCode, pc: int) -> bool:
        return read(pc - 2, 2) == conventions.SYSCALL

    def refused_call(self, registers: Mapping[str, int], read: arch.ReadCode) -> int | None:
        return registers.get("rax") if self.is_behind_syscall(read, registers.get("rip", 0)) else None

    def illegal_instruction(self, code: bytes) -> str:
        return patterns.illegal_instruction(code)

    def has_operand(self, code: bytes, value: int) -> bool:
        return value.to_bytes(4, "little", signed=value < 0) in code


ARCHITECTURE = X8664()
