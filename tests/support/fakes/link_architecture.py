"""A made-up architecture that is as little like x86-64 as can be: instructions of four bytes, loads and stores apart,
calls that leave the return address in a register. What is generic must work on it.

An instruction is operation, register, register, number; a number that is an offset counts in words, a jump's in
instructions from its own address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gdbext.engine.arch import Architecture, FrameRecord, SignalFrame, TlsRelocations
from gdbext.engine.arch.instruction import Instruction, MemoryOperand

NAMES = ("a0", "a1", "a2", "a3", "s0", "s1", "fp", "sp", "lr")
MOVE, LOAD, STORE, ADD, CALL, CALL_BY_POINTER, RETURN, JUMP, OTHER = range(1, 10)
SIZE = 4


def assemble(*instructions: tuple[int, str, str, int]) -> bytes:
    """The bytes of (operation, register, register, number)s."""
    return b"".join(
        bytes((operation, NAMES.index(a), NAMES.index(b), number & 0xFF)) for operation, a, b, number in instructions
    )


class LinkArchitecture(Architecture):
    name = "link"
    title = "Link"
    elf_machine = 4711
    general_registers = (*NAMES, "pc")
    system_registers = ("tp",)
    register_sets: Mapping[int, tuple[str, ...]] = {1: (*NAMES, "pc"), 2: ("tp",)}
    dwarf_registers = NAMES
    return_column = 8
    program_counter, stack_pointer, frame_pointer, thread_register = "pc", "sp", "fp", "tp"
    result_register = "a0"
    result_pointer = "t0"
    frame_record = FrameRecord(0, 8, 16)
    argument_registers = ("a0", "a1", "a2", "a3")
    callee_saved = ("s0", "s1", "fp")
    call_pushes = 0
    red_zone = 0
    longest_instruction = longest_direct_call = SIZE
    entry_marks: tuple[bytes, ...] = ()
    padding = (bytes(SIZE),)
    signal_frame = SignalFrame(b"\xee" * 8, (0,), 16, {name: 8 * number for number, name in enumerate((*NAMES, "pc"))})
    tls_relocations = TlsRelocations(1, 2, 3)
    user_limit = 1 << 48
    kernel_mappings: Mapping[int, str] = {}
    syscall_names: Mapping[int, str] = {5: "futex"}

    def _unused(self, *_: object) -> Any:
        raise NotImplementedError

    blocked_syscall = restarted_syscall = syscall_end = sleeping_registers = _unused
    stopped_at_trap = keeps_vectors = called = stub_slot = _unused
    stubs = direct_calls = has_operand = address_uses = _unused

    def decode(self, code: bytes, address: int) -> Iterator[Instruction]:
        for at in range(0, len(code) - SIZE + 1, SIZE):
            found = _decode(address + at, *code[at : at + SIZE])
            if found is None:
                return
            yield found

    def follows_call(self, before: bytes) -> bool:
        return before[-SIZE:-3] in (bytes((CALL,)), bytes((CALL_BY_POINTER,)))

    def follows_call_by_pointer(self, before: bytes) -> bool:
        return before[-SIZE:-3] == bytes((CALL_BY_POINTER,))

    def return_address_offset(self, at: bytes, before: bytes) -> int | None:  # noqa: ARG002
        return 0 if at[:SIZE] == assemble((ADD, "sp", "sp", -2)) or at[:1] == bytes((RETURN,)) else None


LINK = LinkArchitecture()


def _decode(address: int, operation: int, a: int, b: int, number: int) -> Instruction | None:
    if not MOVE <= operation <= OTHER or max(a, b) >= len(NAMES):
        return None
    first, second, number = NAMES[a], NAMES[b], number - 256 if number > 127 else number
    memory, changed, target = MemoryOperand(second, None, 1, 8 * number), frozenset((first,)), address + SIZE * number
    return {
        MOVE: Instruction(address, SIZE, "mov", first, second, writes=changed),
        LOAD: Instruction(address, SIZE, "mov", first, memory=memory, writes=changed),
        STORE: Instruction(address, SIZE, "mov", source=first, memory=memory, stored=8),
        ADD: Instruction(address, SIZE, "add", first, immediate=8 * number, writes=changed),
        CALL: Instruction(address, SIZE, "call", target=target, writes=frozenset(NAMES)),
        CALL_BY_POINTER: Instruction(address, SIZE, "call", source=first, writes=frozenset(NAMES)),
        RETURN: Instruction(address, SIZE, "ret"),
        JUMP: Instruction(address, SIZE, "jmp", target=target),
        OTHER: Instruction(address, SIZE, "other", writes=changed),
    }[operation]
