"""Who runs the initialiser of a function-local static."""

from __future__ import annotations

import struct

from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread
from support.programs.wait_processes import DATA, Process, wait_of

GUARD = [("libc.so.6", "syscall"), ("app.so", "__cxa_guard_acquire"), ("app.so", "_Z4workv")]


def test_a_static_is_initialised_by_the_thread_inside_its_function():
    process = Process({DATA: struct.pack("<II", 0x10100, 0)}).thread(1, GUARD, args=(DATA, 0, 0x10100))
    process.thread(2, [("libc.so.6", "pause"), ("app.so", "_Z4workv"), ("app.so", "main")])
    process.symbols[DATA] = ("_ZGVZ4workvE5value",)
    wait = wait_of(process)
    assert (wait.resource.kind.value, wait.resource.name) == ("static-init", "work()::value")
    assert (wait.owner, wait.certainty) == (OwnerThread(2), OwnerCertainty.INFERRED)


def test_two_candidates_are_no_owner():
    process = Process({DATA: struct.pack("<II", 0x10100, 0)}).thread(1, GUARD, args=(DATA, 0, 0x10100))
    for tid in (2, 3):
        process.thread(tid, [("libc.so.6", "pause"), ("app.so", "_Z4workv")])
    assert (wait_of(process).owner, wait_of(process).certainty) == (None, OwnerCertainty.UNKNOWN)


def test_another_waiter_for_the_guard_does_not_own_it():
    process = Process({DATA: struct.pack("<II", 0x10100, 0)}).thread(1, GUARD, args=(DATA, 0, 0x10100))
    process.thread(2, GUARD, args=(DATA, 0, 0x10100))
    assert wait_of(process).owner is None
