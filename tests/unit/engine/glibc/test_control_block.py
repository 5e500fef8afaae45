"""A thread's control block, found by what it says of itself."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.glibc.pthread import ThreadFinder, find_control_block, glibc_abi
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.errors import MemoryFault
from support.fakes.fake_target import FakeTarget

ABI = glibc_abi(by_name("x86_64"))
STACK = MemoryMapping(0x7000_0000, 0x7080_0000, 0, "", "rw-p")
SMALL = MemoryMapping(0x7100_0000, 0x7100_3000, 0, "", "rw-p")
HEAP = MemoryMapping(0x6000_0000, 0x6010_0000, 0, "[heap]", "rw-p")
MAIN_STACK = MemoryMapping(0x7FFF_0000, 0x7FFF_8000, 0, "[stack]", "rw-p")


class Pages:
    """Zeros where there is a mapping; control blocks that were put there."""

    def __init__(self, *mappings: MemoryMapping) -> None:
        self.mappings = mappings
        self.data = {each.start: bytearray(each.end - each.start) for each in mappings}

    def block(self, address: int, tid: int, own: int | None = None) -> int:
        for offset in ABI.own_addresses:
            self._write(address + offset, (address if own is None else own).to_bytes(8, "little"))
        self._write(address + ABI.thread_id, tid.to_bytes(4, "little"))
        return address

    def _write(self, address: int, value: bytes) -> None:
        for start, data in self.data.items():
            if start <= address < start + len(data):
                data[address - start : address - start + len(value)] = value

    def read(self, address: int, size: int) -> bytes:
        for start, data in self.data.items():
            if start <= address and address + size <= start + len(data):
                return bytes(data[address - start : address - start + size])
        raise MemoryFault(address, size)

    def find(self, tid: int, stack_pointer: int) -> int | None:
        return find_control_block(self.read, self.mappings, ABI, tid, stack_pointer)


@pytest.mark.parametrize(
    ("mappings", "address", "tid", "found"),
    [
        ((HEAP, STACK, SMALL), STACK.end - 0x940, 42, True),
        ((HEAP, SMALL, MAIN_STACK), SMALL.start + 0x740, 42, True),  # the main thread's
        ((HEAP, STACK), STACK.end - 0x940, 43, False),
    ],
)
def test_a_block_of_the_thread(mappings: tuple[MemoryMapping, ...], address: int, tid: int, found: bool) -> None:
    pages = Pages(*mappings)
    pages.block(address, tid)
    stack = MAIN_STACK if MAIN_STACK in mappings else STACK
    assert pages.find(42, stack.end - 0x1000) == (address if found else None)


@pytest.mark.parametrize("own", [[STACK.end - 0x1940], [None, None]], ids=["a copy", "two"])
def test_what_does_not_prove_to_be_its_own(own: list[int | None]) -> None:
    """What was copied elsewhere still holds the address of the original."""
    pages = Pages(HEAP, STACK)
    for number, address in enumerate(own):
        pages.block(STACK.end - 0x940 - 0x1000 * number, 42, address)
    assert pages.find(42, STACK.end - 0x3000) is None


def test_memory_that_cannot_be_read_is_passed_over() -> None:
    pages = Pages(SMALL)
    block = pages.block(SMALL.start + 0x40, tid=40)
    pages.mappings = (STACK, SMALL)
    assert pages.find(40, STACK.end - 0x3000) == block


START, SIZE = 0x7F0000000000, 0x20000
BLOCK = START + SIZE - 0x900
TID = 4321


def stack(tid: int = TID, start: int = START) -> bytes:
    data = bytearray(SIZE)
    at = SIZE - 0x900
    data[0x100:0x108] = struct.pack("<Q", start + 0x100)  # points to itself, and is no control block
    for offset in (0, 16):
        struct.pack_into("<Q", data, at + offset, start + at)
    struct.pack_into("<I", data, at + 0x2D0, tid)
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
    target = Target({START: stack(tid)})
    assert ThreadFinder()(target, tid, tid, START + 0x1000) == BLOCK
    assert ThreadFinder()(target, tid + 1, tid + 1, START + 0x1000) == 0
    assert ThreadFinder()(target, TID + 1, TID + 1, 0x1000) == 0, "no stack is there"


def test_in_a_pid_namespace_of_its_own() -> None:
    """glibc knows only the id that the thread has in there."""
    assert ThreadFinder()(Target({START: stack(7)}), TID, 7, START + 0x1000) == BLOCK
    assert ThreadFinder()(Target({START: stack(1)}, pid=TID), TID, 1, 0) == BLOCK, "its main thread"


def test_the_next_one_is_where_the_last_one_was() -> None:
    other = START + 0x10000000
    target = Target({START: stack(), other: stack(TID + 1, other)})
    find = ThreadFinder()
    assert find(target, TID, TID, START + 0x1000) == BLOCK
    assert find(target, TID + 1, TID + 1, other + 0x1000) == other + SIZE - 0x900
