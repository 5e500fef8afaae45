"""Reading a ring buffer that is mapped once: what goes round its end comes whole, and what is not complete does not."""

from __future__ import annotations

import mmap
import os
import struct

from gdbext.tools.probes.bpf.trace_program import HEADER, Ring, UniformRing

SIZE = mmap.PAGESIZE
RECORD = struct.Struct("<QQQ")
BUSY = 1 << 31


class Kernel:
    """The other side: the kernel's writer, in a file of memory laid out as the kernel maps it."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("ring")
        os.ftruncate(self.descriptor, 2 * mmap.PAGESIZE + SIZE)
        self.memory = mmap.mmap(self.descriptor, 0)
        self.written = 0

    @property
    def read(self) -> int:
        return int(struct.unpack_from("<Q", self.memory, 0)[0])

    def write(self, payload: bytes, flags: int = 0) -> int:
        """Append a record; where its header is."""
        start = self.written
        for at, byte in enumerate(struct.pack("<II", len(payload) | flags, 0) + payload):
            self.memory[2 * mmap.PAGESIZE + (start + at) % SIZE] = byte
        self.written += HEADER + len(payload) + 7 & ~7
        struct.pack_into("<Q", self.memory, mmap.PAGESIZE, self.written)
        return 2 * mmap.PAGESIZE + start % SIZE


def test_uniform_records_go_round_many_times() -> None:
    kernel = Kernel()
    ring = UniformRing(kernel.descriptor, SIZE, RECORD)
    number, found = 0, []
    for count in (1, 100, 127, 3, 128, 77, 0, 126):
        for _ in range(count):
            kernel.write(RECORD.pack(number, number * 3, ~number & 0xFFFF))
            number += 1
        found += list(ring.records(ring.read()))
        assert kernel.read == kernel.written
    assert found == [(each, each * 3, ~each & 0xFFFF) for each in range(number)]
    ring.close()


def test_a_record_that_is_being_written_holds_back_those_behind_it() -> None:
    kernel = Kernel()
    ring = UniformRing(kernel.descriptor, SIZE, RECORD)
    for number in range(126):
        kernel.write(RECORD.pack(number, 0, 0))
    assert len(ring.read()) == 126 * (HEADER + RECORD.size)
    kernel.write(RECORD.pack(126, 0, 0))
    kernel.write(RECORD.pack(127, 0, 0))
    kernel.write(RECORD.pack(128, 0, 0))
    busy = kernel.write(RECORD.pack(129, 0, 0), BUSY)
    kernel.write(RECORD.pack(130, 0, 0))
    assert [first for first, _, _ in ring.records(ring.read())] == [126, 127, 128]
    struct.pack_into("<I", kernel.memory, busy, RECORD.size)
    assert [first for first, _, _ in ring.records(ring.read())] == [129, 130]
    ring.close()


def test_records_of_any_size_go_round() -> None:
    kernel = Kernel()
    ring = Ring(kernel.descriptor, SIZE)
    for size in (5, 1000, 2000, 900, 3000, 1, 2500, 4000):
        payload = bytes(each % 251 for each in range(size))
        kernel.write(payload)
        assert list(ring.pieces()) == [payload]
    ring.close()
