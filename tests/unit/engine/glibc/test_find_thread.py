"""A thread's control block, found by what it holds."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from gdbext.engine.glibc.pthread import ThreadFinder
from gdbext.engine.targets.base_target import MemoryMapping
from support.fakes.fake_target import FakeTarget

STACK, SIZE = 0x7F0000000000, 0x20000
BLOCK = STACK + SIZE - 0x900
TID = 4321


def block(address: int, tid: int) -> bytes:
    data = bytearray(0x900)
    for offset in (0, 16):
        struct.pack_into("<Q", data, offset, address)
    struct.pack_into("<I", data, 0x2D0, tid)
    return bytes(data)


def stack(tid: int = TID, start: int = STACK) -> bytes:
    data = bytearray(SIZE)
    at = start + SIZE - 0x900
    data[0x100:0x108] = struct.pack("<Q", start + 0x100)  # points to itself, and is no control block
    data[SIZE - 0x900 :] = block(at, tid)
    return bytes(data)


class Target(FakeTarget):
    def __init__(self, pieces: dict[int, bytes], pid: int = 1) -> None:
        super().__init__(pieces)
        self.pid = pid
        self._lines = [MemoryMapping(start, start + len(data), 0, "", "rw-p") for start, data in pieces.items()]

    def maps(self) -> Sequence[MemoryMapping]:
        return self._lines


@pytest.mark.parametrize("tid", [TID, 1])
def test_at_the_end_of_the_stack_or_in_a_mapping_of_the_loader(tid: int) -> None:
    target = Target({STACK: stack(tid)})
    assert ThreadFinder()(target, tid, tid, STACK + 0x1000) == BLOCK


def test_another_thread_s_is_not_taken() -> None:
    assert ThreadFinder()(Target({STACK: stack(TID + 1)}), TID, TID, STACK + 0x1000) == 0


def test_in_a_pid_namespace_of_its_own() -> None:
    """glibc knows only the id that the thread has in there."""
    assert ThreadFinder()(Target({STACK: stack(7)}), TID, 7, STACK + 0x1000) == BLOCK
    assert ThreadFinder()(Target({STACK: stack(1)}, pid=TID), TID, 1, 0) == BLOCK, "its main thread"


def test_the_next_one_is_where_the_last_one_was() -> None:
    other = STACK + 0x10000000
    target = Target({STACK: stack(), other: stack(TID + 1, other)})
    find = ThreadFinder()
    assert find(target, TID, TID, STACK + 0x1000) == BLOCK
    assert find(target, TID + 1, TID + 1, other + 0x1000) == other + SIZE - 0x900


def test_no_stack_is_there() -> None:
    assert ThreadFinder()(Target({STACK: stack()}), TID, TID, 0x1000) == 0
