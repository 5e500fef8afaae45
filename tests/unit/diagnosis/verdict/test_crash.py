"""What is at a faulting address."""

from __future__ import annotations

import pytest

from gdbext.diagnosis.verdict.crash import CrashKind, SignalStop, describe
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.engine.targets.base_target import MemoryMapping, Signal
from gdbext.torch.values.cpp_objects import CxxException

STACK = MemoryMapping(0x7F0000020000, 0x7F0000820000, 0, "", "rw-p")
GUARD = MemoryMapping(0x7F000001F000, 0x7F0000020000, 0, "", "---p")
TEXT = MemoryMapping(0x400000, 0x500000, 0, "/lib/a.so", "r-xp")
RODATA = MemoryMapping(0x500000, 0x600000, 0, "/lib/a.so", "r--p")
HEAP = MemoryMapping(0x600000, 0x700000, 0, "[heap]", "rw-p")
MAPS = (TEXT, RODATA, HEAP, GUARD, STACK)
SP = 0x7F0000400000


def kind(address, sp=SP, rip=0x400100, code=1, maps=MAPS, number=11, name="SIGSEGV"):
    return describe(1, stop(Signal(number, name, code, address), rip, sp), maps).kind.value


def stop(signal, pc=0x400100, sp=SP, **more):
    return SignalStop(signal, pc, sp, user_limit=1 << 47, **more)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (0, "null"),
        (0x18, "null"),
        (0xDEAD0000, "unmapped"),
        (0x500010, "read-only"),
        (0xFFFF800000000000, "non-canonical"),
    ],
)
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
    crash = describe(1, stop(Signal(6, "SIGABRT", -6, 123)), MAPS)
    assert (crash.kind, crash.address) == (CrashKind.ABORT, None)


def test_what_ended_the_program():
    abort = Signal(6, "SIGABRT", -6, None)
    by_terminate = stop(abort, aborted_by=FunctionTag.TERMINATE)
    assert "std::terminate" in describe(1, by_terminate, MAPS).sentence
    assert "std::terminate" not in describe(1, stop(abort), MAPS).sentence


def test_a_trap_of_the_program_is_no_breakpoint_of_a_debugger():
    trap = Signal(5, "SIGTRAP", 128, None)
    assert stop(trap, at_trap=True).is_fatal
    assert not stop(trap).is_fatal
    assert not stop(Signal(5, "SIGTRAP", 0, None), at_trap=True).is_fatal


@pytest.mark.parametrize(("name", "fatal"), [("SIGSEGV", True), ("SIGABRT", True), ("SIGSTOP", False)])
def test_fatal_signals(name, fatal):
    assert stop(Signal(0, name, 0, None)).is_fatal == fatal


def test_what_nobody_caught():
    thrown = CxxException("c10::Error", "\nexpected 32, got 31\nframe #0: …")
    crash = describe(1, stop(Signal(6, "SIGABRT", -6, None), aborted_by=FunctionTag.TERMINATE, thrown=thrown), MAPS)
    assert crash.sentence.endswith("because nobody caught the exception c10::Error: expected 32, got 31")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/weights.bin", "memory of the file /data/weights.bin, which has become shorter"),
        ("/dev/shm/torch_12_34", "memory of /dev/shm/torch_12_34: /dev/shm is full, or the file has become shorter"),
        ("", "memory behind a file that has become shorter, or /dev/shm is full"),
    ],
)
def test_a_page_that_its_file_lacks(path, expected):
    maps = (MemoryMapping(0x800000, 0x900000, 0, path, "rw-s"),)
    assert expected in describe(1, stop(Signal(7, "SIGBUS", 2, 0x880000)), maps).sentence
