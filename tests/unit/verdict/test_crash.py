"""What is at a faulting address."""

from __future__ import annotations

import pytest
from fake_target import FakeTarget

from gdbext.arch.x86_64.architecture import ARCHITECTURE as X86
from gdbext.process.memory import Memory
from gdbext.targets.base import MemoryMapping, Signal
from gdbext.verdict.crash import CrashKind, describe, is_trap
from gdbext.waits.function_tag import FunctionTag

STACK = MemoryMapping(0x7F0000020000, 0x7F0000820000, 0, "", "rw-p")
GUARD = MemoryMapping(0x7F000001F000, 0x7F0000020000, 0, "", "---p")
TEXT = MemoryMapping(0x400000, 0x500000, 0, "/lib/a.so", "r-xp")
RODATA = MemoryMapping(0x500000, 0x600000, 0, "/lib/a.so", "r--p")
HEAP = MemoryMapping(0x600000, 0x700000, 0, "[heap]", "rw-p")
MAPS = (TEXT, RODATA, HEAP, GUARD, STACK)
SP = 0x7F0000400000


def kind(address, sp=SP, rip=0x400100, code=1, maps=MAPS, number=11, name="SIGSEGV"):
    signal = Signal(number, name, code, address)
    return describe(1, signal, X86, {"rsp": sp, "rip": rip}, maps).kind.value


@pytest.mark.parametrize(("address", "expected"), [
    (0, "null"), (0x18, "null"), (0xDEAD0000, "unmapped"), (0x500010, "read-only"),
    (0xFFFF800000000000, "non-canonical"),
])  # fmt: skip
def test_segv(address, expected):
    assert kind(address) == expected


def test_general_protection_has_no_address():
    assert kind(None, code=128) == "non-canonical"


def test_sent_by_kill():
    assert kind(0x1234, code=0) == "other"


def test_stack_overflow_at_the_guard_page_and_beyond_it():
    assert kind(STACK.start - 8, sp=STACK.start + 16) == "stack-overflow"
    assert kind(0x7F0000001000, sp=0x7F0000001000, maps=(TEXT, STACK)) == "stack-overflow"


def test_a_guard_page_far_from_the_stack_pointer_is_no_overflow():
    assert kind(GUARD.start + 8) == "unmapped"


def test_a_write_near_the_stack_pointer_is_no_overflow():
    assert kind(SP - 64, sp=SP) == "other"


def test_jumps():
    assert kind(0, rip=0) == "null"
    assert kind(HEAP.start, rip=HEAP.start) == "no-exec"


def test_abort_has_no_address():
    crash = describe(1, Signal(6, "SIGABRT", -6, 123), X86, {"rsp": SP}, MAPS)
    assert (crash.kind, crash.address) == (CrashKind.ABORT, None)


def test_what_ended_the_program():
    abort = Signal(6, "SIGABRT", -6, None)
    assert "std::terminate" in describe(1, abort, X86, {}, MAPS, FunctionTag.TERMINATE).sentence
    assert "std::terminate" not in describe(1, abort, X86, {}, MAPS).sentence


def test_a_trap_of_the_program_is_no_breakpoint_of_a_debugger():
    memory = Memory(FakeTarget({0x400000: bytes(0x0F) + b"\xcc" + bytes(0xFF0)}))
    trap = Signal(5, "SIGTRAP", 128, None)
    assert is_trap(trap, {"rip": 0x400010}, memory)
    assert not is_trap(trap, {"rip": 0x40000F}, memory)
    assert not is_trap(Signal(5, "SIGTRAP", 0, None), {"rip": 0x400010}, memory)
