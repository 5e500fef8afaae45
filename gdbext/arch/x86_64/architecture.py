"""The object that is x86-64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gdbext.arch.argument_passing import Passing, Slot
from gdbext.arch.base import (
    AddressUse,
    Architecture,
    FloatRegisters,
    LoadedMember,
    ReadCode,
    ThreadsOrGlobal,
    TlsRelocations,
)
from gdbext.arch.instruction import Instruction
from gdbext.arch.x86_64 import patterns, probing, registers, syscalls, thread_loads
from gdbext.arch.x86_64.decode import instructions


class X8664(Architecture):
    """Linux on x86-64, System V ABI."""

    name = "x86_64"
    title = "x86-64"
    elf_machine = 62

    general_registers = registers.GENERAL
    system_registers = registers.SYSTEM
    register_sets: Mapping[int, tuple[str, ...]] = {1: registers.USER_REGS}
    dwarf_registers = registers.BY_DWARF_NUMBER
    return_column = registers.RETURN_COLUMN
    program_counter = "rip"
    stack_pointer = "rsp"
    frame_pointer = "rbp"
    result_register = "rax"
    thread_register = "fs_base"
    syscall_register = "orig_rax"

    argument_registers = registers.ARGUMENTS
    float_argument_registers = registers.FLOAT_ARGUMENTS
    float_registers = FloatRegisters(registers.FLOAT_SET, registers.FLOAT_SET_SIZE, registers.FLOAT_AT)
    callee_saved = registers.CALLEE_SAVED
    call_pushes = 8
    red_zone = 128  # psABI 3.2.2

    longest_instruction = 15
    longest_direct_call = 5
    entry_marks = (patterns.ENDBR64,)
    padding = patterns.PADDING
    signal_frame = registers.SIGNAL_FRAME
    probing = probing.PROBING
    tls_relocations = TlsRelocations(module_id=16, offset=18, descriptor=36)  # R_X86_64_DTPMOD64, _TPOFF64, _TLSDESC

    user_limit = 1 << 47
    kernel_mappings: Mapping[int, str] = {0xFFFFFFFFFF600000: "[vsyscall]"}  # arch/x86/include/uapi/asm/vsyscall.h

    syscall_names = syscalls.NAMES

    def blocked_syscall(self, registers: Mapping[str, int], read: ReadCode) -> tuple[int, tuple[int, ...]] | None:
        return syscalls.blocked(registers, read)

    def restarted_syscall(self, number: int, read: ReadCode, cfa: int) -> int:
        return syscalls.restarted(number, read, cfa)

    def syscall_end(self, registers: Mapping[str, int], read: ReadCode) -> int | None:
        return syscalls.end_of_call(registers, read)

    def sleeping_registers(
        self, number: int, arguments: Sequence[int], stack_pointer: int, program_counter: int
    ) -> dict[str, int]:
        return syscalls.sleeping(number, arguments, stack_pointer, program_counter)

    def stopped_at_trap(self, registers: Mapping[str, int], read: ReadCode) -> bool:
        return read(registers.get("rip", 0) - 1, 1) == patterns.BREAKPOINT

    def decode(self, code: bytes, address: int) -> Iterator[Instruction]:
        return instructions(code, address)

    def place_arguments(self, arguments: Sequence[Passing]) -> list[tuple[Slot, ...]]:
        from gdbext.arch.x86_64.argument_passing import place

        return place(arguments)

    def probe_offset(self, code: bytes, kept: int) -> int | None:
        return probing.emulated_offset(code, instructions(code, 0), kept)

    def follows_call(self, before: bytes) -> bool:
        return patterns.follows_call(before)

    def follows_call_by_pointer(self, before: bytes) -> bool:
        return patterns.follows_call_by_pointer(before)

    def called(self, before: bytes, returns_to: int) -> int | None:
        return patterns.called(before, returns_to)

    def return_address_offset(self, at: bytes, before: bytes) -> int | None:
        return patterns.return_address_offset(at, before)

    def stub_slot(self, code: bytes, address: int) -> int | None:
        return patterns.stub_slot(code, address)

    def stubs(self, table: bytes, address: int) -> Iterator[tuple[int, int]]:
        return patterns.stubs(table, address)

    def direct_calls(self, code: bytes, target: int) -> Iterator[int]:
        return patterns.direct_calls(code, target)

    def table_accesses(self, code: bytes, displacement: int, shift: int, within: int) -> Iterator[int]:
        return patterns.table_accesses(code, displacement, shift, within)

    def loaded_member(self, code: bytes) -> LoadedMember | None:
        return patterns.loaded_member(code)

    def threads_or_global(self, code: bytes, address: int) -> ThreadsOrGlobal | None:
        return thread_loads.threads_or_global(code, address)

    def address_uses(self, code: bytes, address: int) -> Iterator[AddressUse]:
        return patterns.address_uses(code, address)


ARCHITECTURE = X8664()
