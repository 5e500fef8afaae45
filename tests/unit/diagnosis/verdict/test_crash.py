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


def kind(address, sp=SP, rip=0x400100, code=1, maps=MAPS):
    return describe(1, stop(Signal(11, "SIGSEGV", code, address), rip, sp), maps).kind.value


def stop(signal, pc=0x400100, sp=SP, **more):
    return SignalStop(signal, pc, sp, user_limit=1 << 47, **more)


@pytest.mark.parametrize(
    ("expected", "address", "more"),
    [
        *(("null", address, {}) for address in (0, 0x18)),
        ("unmapped", 0xDEAD0000, {}),
        ("read-only", 0x500010, {}),
        ("non-canonical", 0xFFFF800000000000, {}),
        ("non-canonical", None, {"code": 128}),  # a general protection fault has no address
        ("other", 0x1234, {"code": 0}),  # sent by kill(2)
        ("stack-overflow", STACK.start - 8, {"sp": STACK.start + 16}),
        ("stack-overflow", 0x7F0000001000, {"sp": 0x7F0000001000, "maps": (TEXT, STACK)}),
        ("unmapped", GUARD.start + 8, {}),  # far from the stack pointer
        ("other", SP - 64, {}),
        ("null", 0, {"rip": 0}),
        ("no-exec", HEAP.start, {"rip": HEAP.start}),
    ],
)
def test_segv(expected, address, more):
    assert kind(address, **more) == expected


ABORT = Signal(6, "SIGABRT", -6, None)


def test_what_ended_the_program_and_what_nobody_caught():
    aborted = describe(1, stop(ABORT._replace(address=123)), MAPS)
    assert (aborted.kind, aborted.address) == (CrashKind.ABORT, None)
    assert "std::terminate" not in aborted.sentence
    assert "std::terminate" in describe(1, stop(ABORT, aborted_by=FunctionTag.TERMINATE), MAPS).sentence
    thrown = CxxException("c10::Error", "\nexpected 32, got 31\nframe #0: …")
    crash = describe(1, stop(ABORT, aborted_by=FunctionTag.TERMINATE, thrown=thrown), MAPS)
    assert crash.sentence.endswith("for the uncaught exception c10::Error: expected 32, got 31")


@pytest.mark.parametrize(
    ("name", "code", "at_trap", "fatal"),
    [
        *((name, 0, False, name != "SIGSTOP") for name in ("SIGSEGV", "SIGABRT", "SIGSTOP")),
        ("SIGTRAP", 128, True, True),  # of the program itself, not of a debugger's breakpoint
        ("SIGTRAP", 128, False, False),
        ("SIGTRAP", 0, True, False),
    ],
)
def test_fatal_signals(name, code, at_trap, fatal):
    assert stop(Signal(0, name, code, None), at_trap=at_trap).is_fatal == fatal


def test_a_page_that_its_file_lacks():
    for path, expected in {
        "/data/weights.bin": "an access to the mapped file /data/weights.bin, which was truncated",
        "/dev/shm/torch_12_34": "an access to /dev/shm/torch_12_34: /dev/shm is full, or the file was truncated",
        "": "an access to a file that was truncated, or /dev/shm is full",
    }.items():
        maps = (MemoryMapping(0x800000, 0x900000, 0, path, "rw-s"),)
        assert expected in describe(1, stop(Signal(7, "SIGBUS", 2, 0x880000)), maps).sentence
