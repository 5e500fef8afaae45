"""A thread's control block, found by what it says of itself."""

from __future__ import annotations

import struct

import pytest

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.glibc.pthread import ThreadFinder, find_control_block, glibc_abi
from gdbext.engine.targets.base_target import MemoryMapping
from support.fakes.fake_target import FakeTarget

ABI = glibc_abi(by_name("x86_64"))
STACK = MemoryMapping(0x7000_0000, 0x7002_0000, 0, "", "rw-p")
OTHER_STACK = MemoryMapping(0x7200_0000, 0x7202_0000, 0, "", "rw-p")
SMALL = MemoryMapping(0x7100_0000, 0x7100_3000, 0, "", "rw-p")
HEAP = MemoryMapping(0x6000_0000, 0x6010_0000, 0, "[heap]", "rw-p")
MAIN_STACK = MemoryMapping(0x7FFF_0000, 0x7FFF_8000, 0, "[stack]", "rw-p")
BLOCK = STACK.end - 0x940
INSIDE = STACK.end - 0x3000
"""A stack pointer."""
TID = 4321


class Pages(FakeTarget):
    """Zeros where there is a mapping; control blocks that were put there."""

    def __init__(self, *mappings: MemoryMapping, pid: int = 1) -> None:
        super().__init__({each.start: bytes(each.end - each.start) for each in mappings}, mappings)
        self.pid = pid

    def block(self, tid: int, address: int = BLOCK, own: int | None = None) -> Pages:
        start = max(each for each in self.regions if each <= address)
        data = bytearray(self.regions[start])
        for offset in ABI.own_addresses:
            struct.pack_into("<Q", data, address - start + offset, address if own is None else own)
        struct.pack_into("<I", data, address - start + ABI.thread_id, tid)
        struct.pack_into("<Q", data, 0x100, start + 0x100)  # points to itself, and is no control block
        self.regions[start] = bytes(data)
        return self

    def find(self, tid: int, stack_pointer: int = INSIDE) -> int:
        return find_control_block(self.read, self.maps(), ABI, tid, stack_pointer)


@pytest.mark.parametrize(
    ("mappings", "address", "tid", "found"),
    [
        ((HEAP, STACK, SMALL), BLOCK, TID, True),
        ((HEAP, SMALL, MAIN_STACK), SMALL.start + 0x740, TID, True),  # the main thread's
        ((HEAP, STACK), BLOCK, TID + 1, False),
    ],
)
def test_a_block_of_the_thread(mappings: tuple[MemoryMapping, ...], address: int, tid: int, found: bool) -> None:
    stack = MAIN_STACK if MAIN_STACK in mappings else STACK
    assert Pages(*mappings).block(tid, address).find(TID, stack.end - 0x1000) == (address if found else 0)


def test_what_does_not_prove_to_be_its_own() -> None:
    """What was copied elsewhere still holds the address of the original."""
    assert Pages(HEAP, STACK).block(TID, own=BLOCK - 0x1000).find(TID) == 0
    assert Pages(HEAP, STACK).block(TID).block(TID, BLOCK - 0x1000).find(TID) == 0


def test_memory_that_cannot_be_read_is_passed_over() -> None:
    pages = Pages(STACK, SMALL).block(TID, SMALL.start + 0x140)
    del pages.regions[STACK.start]
    assert pages.find(TID) == SMALL.start + 0x140


@pytest.mark.parametrize("tid", [TID, 1])
def test_at_the_end_of_the_stack_or_in_a_mapping_of_the_loader(tid: int) -> None:
    target = Pages(STACK).block(tid)
    assert ThreadFinder()(target, tid, tid, INSIDE) == BLOCK
    assert ThreadFinder()(target, tid + 1, tid + 1, INSIDE) == 0
    assert ThreadFinder()(target, TID + 1, TID + 1, 0x1000) == 0, "no stack is there"


def test_in_a_pid_namespace_of_its_own() -> None:
    """glibc knows only the id that the thread has in there."""
    assert ThreadFinder()(Pages(STACK).block(7), TID, 7, INSIDE) == BLOCK
    assert ThreadFinder()(Pages(STACK, pid=TID).block(1), TID, 1, 0) == BLOCK, "its main thread"


def test_the_next_one_is_where_the_last_one_was() -> None:
    next_block = OTHER_STACK.end - 0x940
    target = Pages(STACK, OTHER_STACK).block(TID).block(TID + 1, next_block)
    find = ThreadFinder()
    assert find(target, TID, TID, INSIDE) == BLOCK
    assert find(target, TID + 1, TID + 1, OTHER_STACK.end - 0x3000) == next_block
