"""The BPF program of a trace: one record for each dispatch, with how deep it is nested.

It keeps, for each thread, the dispatches that are open: where the return address of their function is on the stack, and
the word there. A dispatch has ended when a later one of the thread is not below that address any more, or when the word
is another. No probe at a return is needed, and no stack is written to.

That is not proof: old words survive in holes of newer frames. So the first time that one dispatch is seen below another
at a certain distance, a copy of the stack between them goes to user space, which unwinds it (dispatch_tracer.py) and
tells the program where a dispatch was not made from inside of the other.

The records come through a BPF ring buffer, which is read in this process by mmap. Layout: kernel/bpf/ringbuf.c of Linux
6.18. Page 0 has the reader's position, which we write; page 1 the writer's; behind it is the ring, mapped twice in a
row, so that what wraps around is in one piece. A record has a header of 8 bytes, whose first word is its length, with
bit 31 set as long as it is being written, bit 30 if it was given up.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.place_program import (
    MAX_PLACES,
    PLACE_BITS,
    Filter,
    StackPlaces,
    load_dispatch,
    return_address,
    saved_registers,
)

DEPTH_LIMIT = 255
"""Open dispatches of a thread that are told apart."""
RECORD = struct.Struct("<QQQQQIHH")
"""nanoseconds (CLOCK_MONOTONIC), OperatorEntry* (0: the place's own), keyset, address of the return address, the return
address, thread, number of the place, depth from 1."""
SNAPSHOT = struct.Struct("<QQQQ")
"""Relation (two words), address of the return address, frame pointer; the stack from BELOW bytes before that address
on follows."""
PARENT_PLACE = 48
"""Bits of an address; above them stands the place of the outer dispatch in the second word of a relation."""
BELOW = 120
STACK_BYTES = (1 << 15) - 1
"""Most bytes of a stack that are copied."""
NESTED, NOT_NESTED = 1, 2
"""The knowledge of a relation: nothing to the contrary; or that the one was not called from inside of the other."""
_FRAMES, _SNAPSHOT_AT = 16, 16 + 16 * (DEPTH_LIMIT + 1)
THREAD_STATE = _SNAPSHOT_AT + SNAPSHOT.size + STACK_BYTES + 1
"""Bytes that are kept for a thread: how many are open, then (address, return address and place) of each, and room for a
copy."""
_TIME, _ENTRY, _KEYSET, _SLOT, _RETURNS, _THREAD = -48, -40, -32, -24, -16, -8
"""The record on the program's stack, from its end."""
_KEY, _FOUND, _ZERO, _RELATION, _PARENT, _ONE, _SIZE = -56, -64, -72, -88, -80, -96, -104
_NO_WAKEUP = 1
"""BPF_RB_NO_WAKEUP: the reader comes by itself."""
_AT = StackPlaces(entry=_ENTRY, keyset=_KEYSET, thread=_KEY)


class TraceMaps(NamedTuple):
    """Descriptors of what the program works with."""

    ring: int
    states: int
    blank: int
    lost: int
    wanted: int
    relations: int
    snapshots: int


def program(architecture: Architecture, maps: TraceMaps, only: Filter) -> bpf.Code:
    """The program that writes a record for each dispatch, and a copy of the stack for each new relation."""
    return bpf.assemble(
        (
            *load_dispatch(architecture, _AT, maps.wanted, only),
            *return_address(architecture),
            bpf.store(bpf.FRAME, _SLOT, bpf.B3),
            *bpf.read_user(_RETURNS),
            *_state(maps),
            *_leave(maps),
            *_enter(),
            *_copy(architecture, maps),
            *_report(maps),
        )
    )


def _state(maps: TraceMaps) -> list[bpf.Part]:
    """B9: the thread's state; a new thread gets a blank one."""
    return [
        *bpf.look_up(maps.states, _KEY),
        bpf.jump_unless_equal("known", bpf.B0, 0),
        bpf.store_constant(bpf.FRAME, _ZERO, 0),
        *bpf.look_up(maps.blank, _ZERO),
        bpf.jump_if_equal("end", bpf.B0, 0),
        bpf.move(bpf.B3, bpf.B0),
        *bpf.put(maps.states, _KEY),
        *bpf.look_up(maps.states, _KEY),
        bpf.jump_if_equal("lost", bpf.B0, 0),
        bpf.Label("known"),
        bpf.move(bpf.B9, bpf.B0),
    ]


def _leave(maps: TraceMaps) -> list[bpf.Part]:
    """B8: how many dispatches are open around this one. Zero at _ONE: the relation to the innermost is new."""
    return [
        bpf.load(bpf.B8, bpf.B9, 0),
        bpf.keep_bits(bpf.B8, DEPTH_LIMIT),
        bpf.Label("next"),
        bpf.jump_if_equal("nested", bpf.B8, 0),
        bpf.address(bpf.B1, bpf.B8, -1),
        *_frame(),
        bpf.load(bpf.B3, bpf.B1, _FRAMES),
        bpf.load(bpf.B2, bpf.FRAME, _SLOT),
        bpf.jump_unless_above("gone", bpf.B3, bpf.B2),
        bpf.load(bpf.B0, bpf.B1, _FRAMES + 8),  # the relation: the other's return address, and in one word the
        bpf.store(bpf.FRAME, _PARENT, bpf.B0),  # distance (the other's slot in B3, ours in B2) and our place
        bpf.move(bpf.B0, bpf.B3),
        bpf.subtract(bpf.B0, bpf.B2),
        bpf.shift_left(bpf.B0, PLACE_BITS),
        bpf.move(bpf.B2, bpf.B7),
        bpf.keep_bits(bpf.B2, MAX_PLACES - 1),
        bpf.plus(bpf.B0, bpf.B2),
        bpf.store(bpf.FRAME, _RELATION, bpf.B0),
        *bpf.read_user(_FOUND),
        bpf.load(bpf.B1, bpf.FRAME, _PARENT),
        bpf.load(bpf.B2, bpf.FRAME, _FOUND),
        bpf.shift_left(bpf.B1, 64 - PARENT_PLACE),
        bpf.shift_right(bpf.B1, 64 - PARENT_PLACE),
        bpf.jump_if_same("intact", bpf.B1, bpf.B2),
        bpf.jump("gone"),
        bpf.Label("intact"),
        *bpf.look_up(maps.relations, _RELATION),
        bpf.jump_if_equal("unproven", bpf.B0, 0),
        bpf.load(bpf.B1, bpf.B0, 0),
        bpf.jump_unless_equal("nested", bpf.B1, NOT_NESTED),
        bpf.Label("gone"),
        bpf.increase(bpf.B8, -1),
        bpf.jump("next"),
        bpf.Label("unproven"),
        bpf.store_constant(bpf.FRAME, _ONE, 0),
        bpf.jump("known relation"),
        bpf.Label("nested"),
        bpf.store_constant(bpf.FRAME, _ONE, NESTED),
        bpf.Label("known relation"),
    ]


def _frame() -> list[bpf.Part]:
    """B1: from the number of an open dispatch to its place in the thread's state, less _FRAMES."""
    return [bpf.keep_bits(bpf.B1, DEPTH_LIMIT), bpf.shift_left(bpf.B1, 4), bpf.plus(bpf.B1, bpf.B9)]


def _copy(architecture: Architecture, maps: TraceMaps) -> list[bpf.Part]:
    """The stack from here up to the outermost dispatch, unless it is known whether we are inside of the next one."""
    frame_pointer = saved_registers(architecture).get(architecture.frame_pointer, 0)
    to = _SNAPSHOT_AT
    return [
        bpf.load(bpf.B1, bpf.FRAME, _ONE),
        bpf.jump_if_equal("copy", bpf.B1, 0),
        bpf.jump("copied"),
        bpf.Label("copy"),
        bpf.load(bpf.B2, bpf.B9, _FRAMES),
        bpf.load(bpf.B3, bpf.FRAME, _SLOT),
        bpf.subtract(bpf.B2, bpf.B3),
        bpf.increase(bpf.B2, BELOW + 8),
        bpf.jump_if_above("long", bpf.B2, STACK_BYTES),
        bpf.jump("size"),
        bpf.Label("long"),
        bpf.constant(bpf.B2, STACK_BYTES),
        bpf.Label("size"),
        bpf.keep_bits(bpf.B2, STACK_BYTES),
        bpf.store(bpf.FRAME, _SIZE, bpf.B2),
        bpf.increase(bpf.B3, -BELOW),
        bpf.address(bpf.B1, bpf.B9, to + SNAPSHOT.size),
        bpf.call(bpf.READ_USER),
        bpf.jump_unless_equal("copied", bpf.B0, 0),
        bpf.copy_word(bpf.B9, to, bpf.FRAME, _RELATION),
        bpf.copy_word(bpf.B9, to + 8, bpf.FRAME, _PARENT),
        bpf.copy_word(bpf.B9, to + 16, bpf.FRAME, _SLOT),
        bpf.copy_word(bpf.B9, to + 24, bpf.B6, frame_pointer),
        bpf.load_map(bpf.B1, maps.snapshots),
        bpf.address(bpf.B2, bpf.B9, to),
        bpf.load(bpf.B3, bpf.FRAME, _SIZE),
        bpf.keep_bits(bpf.B3, STACK_BYTES),
        bpf.increase(bpf.B3, SNAPSHOT.size),
        bpf.constant(bpf.B4, _NO_WAKEUP),
        bpf.call(bpf.RING_OUTPUT),
        bpf.jump_unless_equal("copied", bpf.B0, 0),
        bpf.store_constant(bpf.FRAME, _ONE, NESTED),
        *bpf.put(maps.relations, _RELATION, _ONE),
        bpf.Label("copied"),
    ]


def _enter() -> list[bpf.Part]:
    """B8: its depth, and it is open now; the deepest ones are not followed."""
    return [
        bpf.jump_if_above("deep", bpf.B8, DEPTH_LIMIT - 1),
        bpf.move(bpf.B1, bpf.B8),
        *_frame(),
        bpf.load(bpf.B2, bpf.FRAME, _SLOT),
        bpf.store(bpf.B1, _FRAMES, bpf.B2),
        bpf.move(bpf.B2, bpf.B7),
        bpf.keep_bits(bpf.B2, MAX_PLACES - 1),
        bpf.shift_left(bpf.B2, PARENT_PLACE),
        bpf.load(bpf.B3, bpf.FRAME, _RETURNS),
        bpf.plus(bpf.B2, bpf.B3),
        bpf.store(bpf.B1, _FRAMES + 8, bpf.B2),
        bpf.increase(bpf.B8, 1),
        bpf.store(bpf.B9, 0, bpf.B8),
        bpf.Label("deep"),
    ]


def _report(maps: TraceMaps) -> list[bpf.Part]:
    """Thread, place and depth in one word; then the record goes to the ring, or counts as lost."""
    return [
        bpf.shift_left(bpf.B8, 48),
        bpf.keep_bits(bpf.B7, MAX_PLACES - 1),
        bpf.shift_left(bpf.B7, 32),
        bpf.call(bpf.CURRENT_PID_TGID),
        bpf.low_word(bpf.B0),
        bpf.plus(bpf.B8, bpf.B7),
        bpf.plus(bpf.B8, bpf.B0),
        bpf.store(bpf.FRAME, _THREAD, bpf.B8),
        bpf.call(bpf.TIME),
        bpf.store(bpf.FRAME, _TIME, bpf.B0),
        bpf.load_map(bpf.B1, maps.ring),
        bpf.address(bpf.B2, bpf.FRAME, _TIME),
        bpf.constant(bpf.B3, RECORD.size),
        bpf.constant(bpf.B4, _NO_WAKEUP),
        bpf.call(bpf.RING_OUTPUT),
        bpf.jump_if_equal("end", bpf.B0, 0),
        *bpf.count_lost(maps.lost, _ZERO),
    ]


HEADER = 8
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_POSITION, _WORD = struct.Struct("<Q"), struct.Struct("<I")


class Ring:
    """A ring whose records may have any size. ``size``: its bytes, a power of two and at least a page."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map the ring buffer. Raises OSError."""
        page = mmap.PAGESIZE
        self._size = size
        self._start = page
        self._position = 0
        self._own_page = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # The kernel offers the ring a second time behind its end (kernel/bpf/ringbuf.c); every page of it would count
        # as memory of ours.
        self._ring = mmap.mmap(descriptor, page + size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)

    def pieces(self) -> Iterator[bytes]:
        """The records that are complete, one by one; the room of each is free when the next one is asked for."""
        while self._unread() > 0:
            at = self._at()
            head: int = _WORD.unpack_from(self._ring, at)[0]
            if head & _BUSY:
                return
            length = head & ~_DISCARDED
            if not head & _DISCARDED:
                yield self._bytes(at + HEADER, length)
            self._advance(HEADER + length + 7 & ~7)

    def _unread(self) -> int:
        """Bytes from our position to the writer's."""
        return int(_POSITION.unpack_from(self._ring, 0)[0]) - self._position

    def _at(self) -> int:
        """Our position in the mapped memory."""
        return self._start + (self._position & self._size - 1)

    def _bytes(self, start: int, length: int) -> bytes:
        """The bytes there; those behind the end of the ring are at its beginning."""
        missing = max(0, start + length - self._start - self._size)
        found = self._ring[start : start + length - missing]
        return found + self._ring[self._start : self._start + missing] if missing else found

    def _advance(self, size: int) -> None:
        self._position += size
        _POSITION.pack_into(self._own_page, 0, self._position)

    def close(self) -> None:
        """Unmap the memory; a second call does nothing."""
        self._own_page.close()
        self._ring.close()


class UniformRing(Ring):
    """A ring whose records all have one size, a multiple of 8, and are read many at a time."""

    def __init__(self, descriptor: int, size: int, record: struct.Struct) -> None:
        """Map the ring buffer. Raises OSError."""
        super().__init__(descriptor, size)
        self._step = HEADER + record.size
        self._payload = record.size
        self.records: Callable[[bytes], Iterator[tuple[Any, ...]]]
        self.records = struct.Struct(f"<8x{record.format.lstrip('<')}").iter_unpack
        """The records in what read() gave."""
        self._headers = memoryview(self._ring).cast("I")

    def read(self) -> bytes:
        """All records that are complete, one after the other, and room for as many new ones in the ring."""
        step, count = self._step, self._unread() // self._step
        if not count:
            return b""
        # No record begins so near to the end that its header goes round: both are multiples of eight bytes.
        start, end = self._at(), self._start + self._size
        before_end = min(count, -((start - end) // step))
        again = start + before_end * step - self._size
        heads = self._headers[start >> 2 : (start + before_end * step) >> 2 : step >> 2].tolist()
        heads += self._headers[again >> 2 : (again + (count - before_end) * step) >> 2 : step >> 2].tolist()
        if any(head != self._payload for head in heads):
            count = next(number for number, head in enumerate(heads) if head != self._payload)
        found = self._bytes(start, count * step)
        self._advance(count * step)
        return found

    def close(self) -> None:
        """Unmap the memory; a second call does nothing."""
        self._headers.release()
        super().close()
