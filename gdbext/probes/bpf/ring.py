"""A BPF ring buffer, read in this process through mmap.

Layout: kernel/bpf/ringbuf.c of Linux 6.18. Page 0 has the reader's position, which we write; page 1 the writer's;
behind it is the ring, mapped twice in a row, so that what wraps around is in one piece. A record has a header of 8
bytes, whose first word is its length, with bit 31 set as long as it is being written, bit 30 if it was given up.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Any

HEADER = 8
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_POSITION, _WORD = struct.Struct("<Q"), struct.Struct("<I")


class Ring:
    """A ring whose records may have any size. ``size``: its bytes, a power of two and at least a page."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Raises OSError."""
        page = mmap.PAGESIZE
        self._size = size
        self._start = page
        self._position = 0
        self._ours = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._theirs = mmap.mmap(descriptor, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)

    def pieces(self) -> Iterator[bytes]:
        """The records that are complete, one by one; the room of each is free when the next one is asked for."""
        while self._position < self._written():
            at = self._at()
            head: int = _WORD.unpack_from(self._theirs, at)[0]
            if head & _BUSY:
                return
            length = head & ~_DISCARDED
            if not head & _DISCARDED:
                yield self._theirs[at + HEADER : at + HEADER + length]
            self._advance(HEADER + length + 7 & ~7)

    def _written(self) -> int:
        return int(_POSITION.unpack_from(self._theirs, 0)[0])

    def _at(self) -> int:
        return self._start + (self._position & self._size - 1)

    def _advance(self, size: int) -> None:
        self._position += size
        _POSITION.pack_into(self._ours, 0, self._position)

    def close(self) -> None:
        """Unmap; idempotent."""
        self._ours.close()
        self._theirs.close()


class UniformRing(Ring):
    """A ring whose records all have one size, a multiple of 8, and are read many at a time."""

    def __init__(self, descriptor: int, size: int, record: struct.Struct) -> None:
        """Raises OSError."""
        super().__init__(descriptor, size)
        self._step = HEADER + record.size
        self._payload = record.size
        self._unpack = struct.Struct(f"<8x{record.format.lstrip('<')}").iter_unpack
        self._headers = memoryview(self._theirs).cast("I")

    def read(self) -> bytes:
        """All records that are complete, one after the other, and room for as many new ones in the ring."""
        count = (self._written() - self._position) // self._step
        if not count:
            return b""
        start = self._at()
        heads = self._headers[start >> 2 : (start + count * self._step) >> 2 : self._step >> 2].tolist()
        if any(head != self._payload for head in heads):
            count = next(number for number, head in enumerate(heads) if head != self._payload)
        found = self._theirs[start : start + count * self._step]
        self._advance(count * self._step)
        return found

    def records(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        """The records in what read() gave."""
        return self._unpack(data)

    def close(self) -> None:
        """Unmap; idempotent."""
        self._headers.release()
        super().close()
