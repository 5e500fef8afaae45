"""The page cache: exact bytes, the first address that is missing, and few reads of the target."""

from __future__ import annotations

import random
import struct

import pytest

from gdbext.engine.process.memory import PAGE_SIZE, Memory
from gdbext.errors import BadData, MemoryFault
from support.fakes.fake_target import FakeTarget

START = 0x7F0000001000
PAGES = 21


@pytest.fixture(scope="module")
def contents() -> bytes:
    return random.Random(1).randbytes(PAGES * PAGE_SIZE)


@pytest.fixture
def target(contents: bytes) -> FakeTarget:
    return FakeTarget({START: contents})


def test_integers(target: FakeTarget, contents: bytes) -> None:
    memory = Memory(target)
    for offset in (0, 1, PAGE_SIZE - 8, PAGE_SIZE - 7, PAGE_SIZE - 4, PAGE_SIZE - 1):
        at = START + offset
        assert memory.u8(at) == contents[offset]
        assert memory.u16(at) == struct.unpack_from("<H", contents, offset)[0]
        assert memory.u32(at) == struct.unpack_from("<I", contents, offset)[0]
        assert memory.i32(at) == struct.unpack_from("<i", contents, offset)[0]
        assert memory.u64(at) == memory.pointer(at) == struct.unpack_from("<Q", contents, offset)[0]
        assert memory.i64(at) == struct.unpack_from("<q", contents, offset)[0]
        assert memory.words(at, 700) == struct.unpack_from("<700Q", contents, offset)


def test_a_fault_names_the_first_missing_address(target: FakeTarget) -> None:
    memory = Memory(target)
    end = START + PAGES * PAGE_SIZE
    for address, size, first in (
        (end - 3, 8, end),
        (end - 3 * PAGE_SIZE, 4 * PAGE_SIZE, end),
        (end + 5, 1, end + 5),
        (START - 4, 8, START - 4),
        (0, 8, 0),
        (end - PAGE_SIZE, 1 << 20, end),
    ):
        with pytest.raises(MemoryFault) as caught:
            memory.read(address, size)
        assert caught.value.address == first
        assert memory.try_read(address, size) == b""


def test_impossible_ranges_fault_without_asking(target: FakeTarget) -> None:
    memory, end = Memory(target), 1 << 64
    impossible = [(-8, 8), (-1, 1), (end, 8), (end - 4, 8), (1 << 80, 1), (START, 1 << 40), (START, -1), (end, 1)]
    for address, size in impossible:
        with pytest.raises(MemoryFault):
            memory.read(address, size)
    assert target.reads == []


def test_strings() -> None:
    at = 0x5000 + PAGE_SIZE - 3
    page = b"\xff" * (PAGE_SIZE - 3) + b"abcdefg\0" + b"x" * (3 * PAGE_SIZE - 5)
    memory = Memory(FakeTarget({0x5000: page}))
    assert memory.cstring(at) == b"abcdefg"
    assert memory.cstring(at + 7) == b""
    assert memory.cstring(at, 8) == b"abcdefg"
    with pytest.raises(BadData):
        memory.cstring(at, 7)
    with pytest.raises(BadData):
        memory.cstring(at + 8, 100)
    with pytest.raises(MemoryFault):
        memory.cstring(at + 8, 5 * PAGE_SIZE)


def test_what_a_running_process_was_changing_is_read_again() -> None:
    """Also from the cache; at most so often, and not at all where nothing runs."""
    for runs, contradictions in ((True, 3), (True, 1000), (False, 1)):
        target = FakeTarget({START: bytes(PAGE_SIZE)})
        target.memory.runs_meanwhile = runs
        memory, left = Memory(target), [BadData("3635 used, 3626 claimed")] * contradictions

        def read(memory: Memory = memory, left: list[BadData] = left) -> int:
            value = memory.u64(START)
            if left:
                raise left.pop()
            return value

        if runs and contradictions == 3:
            assert memory.read_consistently(read) == 0
            assert len(target.reads) == 4
        else:
            with pytest.raises(BadData, match="3626 claimed"):
                memory.read_consistently(read)
            assert len(target.reads) < 10 if runs else len(target.reads) == 1
