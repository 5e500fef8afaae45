"""Traces dispatches in the kernel, with a record for each, and proves on copies of stacks which are nested.

The BPF program keeps the open dispatches of each thread: the stack address of the return address of their function, and
the word there. A dispatch has ended when a later one of the thread is not below that address any more, or when the word
has changed. So no probe at a return is needed.

Because old words survive in holes of newer frames, that is not proof. The first time that one dispatch is seen below
another at a certain distance, the program sends a copy of the stack between them. CallProof unwinds it, and tells the
program if the inner dispatch was not made from inside of the outer one.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.targets.base_target import Target
from gdbext.engine.unwind.caller_check import CallerCheck, CallerWalk
from gdbext.errors import GdbextError, MemoryFault
from gdbext.live.dispatch_places import AllCalls
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.bpf_kernel import ARRAY, HASH, RING
from gdbext.tools.probes.bpf.place_program import (
    EVERYTHING,
    MAX_PLACES,
    PLACE_BITS,
    Filter,
    StackPlaces,
    TracePlace,
    load_dispatch,
    return_address,
    saved_registers,
)
from gdbext.tools.probes.bpf.probe_keeper import ProbeSet

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session

DEPTH_LIMIT = 255
"""Open dispatches of a thread that the program can keep."""
RECORD = struct.Struct("<QQQQQIHH")
"""The fields of SeenDispatch; the OperatorEntry* is 0 for the place's own."""
SNAPSHOT = struct.Struct("<QQQQ")
"""Relation (two words), address of the return address, frame pointer; then the stack from BELOW bytes before that
address on."""
PARENT_PLACE = 48
"""Bits of an address; in the second word of a relation, the bits above them are the place of the outer dispatch."""
BELOW = 120
STACK_BYTES = (1 << 15) - 1
"""Most bytes of a stack that are copied."""
NESTED, NOT_NESTED = 1, 2
"""States of a relation: nothing disproves it; the inner dispatch was not made from inside of the outer one."""
_FRAMES, _SNAPSHOT_AT = 16, 16 + 16 * (DEPTH_LIMIT + 1)
THREAD_STATE = _SNAPSHOT_AT + SNAPSHOT.size + STACK_BYTES + 1
"""Bytes that are kept for a thread: number of open dispatches, then (address, return address and place) of each, and
room for a copy of the stack."""
_TIME, _ENTRY, _KEYSET, _SLOT, _RETURNS, _THREAD = -48, -40, -32, -24, -16, -8
"""The record on the program's stack, from its end."""
_KEY, _STACK_WORD, _ZERO, _RELATION, _PARENT, _ONE, _SIZE = -56, -64, -72, -88, -80, -96, -104
_NO_WAKEUP = 1
"""BPF_RB_NO_WAKEUP: the reader polls."""
_AT = StackPlaces(entry=_ENTRY, keyset=_KEYSET, thread=_KEY)


class TraceMaps(NamedTuple):
    """Fds of the maps that the program uses."""

    ring: int
    states: int
    """Thread → its open dispatches (THREAD_STATE)."""
    blank: int
    """One empty THREAD_STATE."""
    lost: int
    wanted: int
    relations: int
    """Relation → NESTED or NOT_NESTED."""
    snapshots: int


def tracing_program(architecture: Architecture, maps: TraceMaps, only: Filter) -> bytes:
    """The BPF program that writes a record for each dispatch, and a copy of the stack for each new relation."""
    return bpf.assemble(f"""
        {load_dispatch(architecture, _AT, maps.wanted, only)}
        {return_address(architecture)}
        [fp + {_SLOT}] = r3
        call probe_read_user(fp + {_RETURNS}, 8, r3)
        {_load_state(maps)}
        {_close_ended(maps)}
        {_open_dispatch()}
        {_copy_stack(architecture, maps)}
        {_write_record(maps)}
    """)


def _load_state(maps: TraceMaps) -> str:
    """BPF code that sets r9 to the address of the thread's state; a new thread gets a blank one."""
    return f"""
        {bpf.look_up(maps.states, _KEY)}
        if r0 != 0 goto has_state
        [fp + {_ZERO}] = 0
        {bpf.look_up(maps.blank, _ZERO)}
        if r0 == 0 goto end
        r3 = r0
        call map_update_elem(map {maps.states}, fp + {_KEY}, r3, 0)
        {bpf.look_up(maps.states, _KEY)}
        if r0 == 0 goto lost
    has_state:
        r9 = r0"""


def _close_ended(maps: TraceMaps) -> str:
    """BPF code that sets r8 to the number of dispatches around this one, and the word at _ONE to 0 if the relation to
    the innermost of them is new. From the innermost outwards, one is over if its return address is not above ours on
    the stack (in r3 and r2), is not there any more, or if the relation is known to be impossible."""
    return f"""
        r8 = [r9 + 0] & {DEPTH_LIMIT}
    next:
        if r8 == 0 goto nested
        r1 = r8 + -1
        {_SLOT_ADDRESS}
        r3 = [r1 + {_FRAMES}]
        r2 = [fp + {_SLOT}]
        if r3 <= r2 goto gone
        r0 = [r1 + {_FRAMES + 8}]
        [fp + {_PARENT}] = r0
        r0 = r3 - r2
        r0 <<= {PLACE_BITS}
        r2 = r7 & {MAX_PLACES - 1}
        r0 += r2
        [fp + {_RELATION}] = r0
        call probe_read_user(fp + {_STACK_WORD}, 8, r3)
        r1 = [fp + {_PARENT}]
        r2 = [fp + {_STACK_WORD}]
        r1 <<= {64 - PARENT_PLACE}
        r1 >>= {64 - PARENT_PLACE}
        if r1 != r2 goto gone
        {bpf.look_up(maps.relations, _RELATION)}
        if r0 == 0 goto unproven
        if [r0 + 0] != {NOT_NESTED} goto nested
    gone:
        r8 += -1
        goto next
    unproven:
        [fp + {_ONE}] = 0
        goto known_relation
    nested:
        [fp + {_ONE}] = {NESTED}
    known_relation:"""


_SLOT_ADDRESS = f"""
        r1 &= {DEPTH_LIMIT}
        r1 <<= 4
        r1 += r9"""
"""Turns the number of an open dispatch in r1 into the address of its entry in the thread's state, less _FRAMES."""


def _copy_stack(architecture: Architecture, maps: TraceMaps) -> str:
    """BPF code that sends a snapshot of the stack up to the outermost dispatch if the relation is new (0 at _ONE)."""
    frame_pointer = saved_registers(architecture).get(architecture.frame_pointer, 0)
    return f"""
        if [fp + {_ONE}] != 0 goto copied
        r2 = [r9 + {_FRAMES}]
        r3 = [fp + {_SLOT}]
        r2 -= r3
        r2 += {BELOW + 8}
        if r2 <= {STACK_BYTES} goto size
        r2 = {STACK_BYTES}
    size:
        r2 &= {STACK_BYTES}
        [fp + {_SIZE}] = r2
        r3 += {-BELOW}
        call probe_read_user(r9 + {_SNAPSHOT_AT + SNAPSHOT.size}, r2, r3)
        if r0 != 0 goto copied
        [r9 + {_SNAPSHOT_AT}] = [fp + {_RELATION}]
        [r9 + {_SNAPSHOT_AT + 8}] = [fp + {_PARENT}]
        [r9 + {_SNAPSHOT_AT + 16}] = [fp + {_SLOT}]
        [r9 + {_SNAPSHOT_AT + 24}] = [r6 + {frame_pointer}]
        r3 = [fp + {_SIZE}] & {STACK_BYTES}
        r3 += {SNAPSHOT.size}
        call ringbuf_output(map {maps.snapshots}, r9 + {_SNAPSHOT_AT}, r3, {_NO_WAKEUP})
        if r0 != 0 goto copied
        [fp + {_ONE}] = {NESTED}
        {bpf.put(maps.relations, _RELATION, _ONE)}
    copied:"""


def _open_dispatch() -> str:
    """BPF code that adds this dispatch to the open ones, and sets r8 to its depth. Those beyond DEPTH_LIMIT are not
    followed."""
    return f"""
        if r8 > {DEPTH_LIMIT - 1} goto deep
        r1 = r8
        {_SLOT_ADDRESS}
        [r1 + {_FRAMES}] = [fp + {_SLOT}]
        r2 = r7 & {MAX_PLACES - 1}
        r2 <<= {PARENT_PLACE}
        r3 = [fp + {_RETURNS}]
        r2 += r3
        [r1 + {_FRAMES + 8}] = r2
        r8 += 1
        [r9 + 0] = r8
    deep:"""


def _write_record(maps: TraceMaps) -> str:
    """BPF code that puts thread, place and depth into one word, and writes the record to the ring, or counts it as
    lost."""
    return f"""
        r8 <<= 48
        r7 &= {MAX_PLACES - 1}
        r7 <<= 32
        call get_current_pid_tgid()
        w0 = w0
        r8 += r7
        r8 += r0
        [fp + {_THREAD}] = r8
        call ktime_get_ns()
        [fp + {_TIME}] = r0
        call ringbuf_output(map {maps.ring}, fp + {_TIME}, {RECORD.size}, {_NO_WAKEUP})
        if r0 == 0 goto end
        {bpf.count_lost(maps.lost, _ZERO)}"""


HEADER = 8
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_POSITION = struct.Struct("<Q")


class Ring:
    """Reads a BPF ring buffer by mmap. Its records may have any size.

    Layout (kernel/bpf/ringbuf.c, Linux 6.18): page 0 has the reader's position, page 1 the writer's; the ring follows.
    A record has a header of 8 bytes, whose first word is its length, with bit 31 set while it is being written, and bit
    30 if it was discarded.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        """Map the ring buffer; ``size``: its bytes, a power of two and at least a page. Raises OSError."""
        page = mmap.PAGESIZE
        self._size = size
        self._start = page
        self._position = 0
        self._own_page = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # The kernel offers the ring a second time behind its end; every page of it would count as memory of ours.
        self._ring = mmap.mmap(descriptor, page + size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)

    def pieces(self) -> Iterator[bytes]:
        """The complete records; the room of each is released when the next one is requested."""
        while self._unread() > 0:
            start = self._read_offset()
            header: int = struct.unpack_from("<I", self._ring, start)[0]
            if header & _BUSY:
                return
            length = header & ~_DISCARDED
            if not header & _DISCARDED:
                yield self._bytes(start + HEADER, length)
            self._advance(HEADER + length + 7 & ~7)

    def _unread(self) -> int:
        """Bytes from our position to the writer's."""
        return int(_POSITION.unpack_from(self._ring, 0)[0]) - self._position

    def _read_offset(self) -> int:
        """Offset of our position in the mapped memory."""
        return self._start + (self._position & self._size - 1)

    def _bytes(self, start: int, length: int) -> bytes:
        """``length`` bytes from an offset of the mapped memory on; after the ring's end follows its beginning."""
        missing = max(0, start + length - self._start - self._size)
        data = self._ring[start : start + length - missing]
        return data + self._ring[self._start : self._start + missing] if missing else data

    def _advance(self, size: int) -> None:
        """Release the room of the next ``size`` bytes."""
        self._position += size
        _POSITION.pack_into(self._own_page, 0, self._position)

    def close(self) -> None:
        """Unmap the memory; a second call does nothing."""
        self._own_page.close()
        self._ring.close()


class UniformRing(Ring):
    """A ring whose records all have one size, a multiple of 8, and are read many at a time."""

    def __init__(self, descriptor: int, size: int, record: struct.Struct) -> None:
        """``size``: bytes of the ring; ``record``: the fields of a record."""
        super().__init__(descriptor, size)
        self._step = HEADER + record.size
        self._payload = record.size
        self.records: Callable[[bytes], Iterator[tuple[Any, ...]]]
        self.records = struct.Struct(f"<8x{record.format.lstrip('<')}").iter_unpack
        """Unpacks the records in the result of read()."""
        self._headers = memoryview(self._ring).cast("I")

    def read(self) -> bytes:
        """Take all complete records, with their headers, out of the ring."""
        step, count = self._step, self._unread() // self._step
        if not count:
            return b""
        # No header wraps around the end, since all positions are multiples of eight bytes.
        start, end = self._read_offset(), self._start + self._size
        before_end = min(count, -((start - end) // step))
        wrapped = start + before_end * step - self._size
        headers = self._headers[start >> 2 : (start + before_end * step) >> 2 : step >> 2].tolist()
        headers += self._headers[wrapped >> 2 : (wrapped + (count - before_end) * step) >> 2 : step >> 2].tolist()
        if any(header != self._payload for header in headers):
            count = next(number for number, header in enumerate(headers) if header != self._payload)
        data = self._bytes(start, count * step)
        self._advance(count * step)
        return data

    def close(self) -> None:
        self._headers.release()
        super().close()


Relation = tuple[int, int]
"""Two dispatches on a stack, as two words: the distance between their return addresses, with the number of the inner
place in the low bits; the outer return address, with the number of the outer place in the high bits."""
_ADDRESS = (1 << PARENT_PLACE) - 1


def relation(outer_slot: int, outer_returns: int, outer_place: int, slot: int, place: int) -> Relation:
    """The relation of two dispatches, as the BPF program computes it. ``outer_slot`` and ``slot``: stack addresses of
    the return addresses of the outer and the inner function; ``outer_returns``: the outer return address itself."""
    return outer_slot - slot << PLACE_BITS | place, outer_returns | outer_place << PARENT_PLACE


class CallProof:
    """Proves by unwinding copies of stacks which dispatches are nested."""

    def __init__(self, session: Session, addresses: Mapping[int, int]) -> None:
        """``addresses``: number of a place → its address."""
        self._session = session
        self._addresses = addresses

    @cached_property
    def _all_calls(self) -> AllCalls:
        return AllCalls(self._session)

    def check(self, snapshot: bytes) -> tuple[Relation, bool]:
        """(the relation that a snapshot shows, False if the inner dispatch was proven not to be made from inside of the
        outer one)."""
        first, second, slot, frame_pointer = SNAPSHOT.unpack_from(snapshot)
        outer_address = self._addresses.get(second >> PARENT_PLACE)
        outer_slot = slot + (first >> PLACE_BITS)
        inner_address = self._addresses.get(first & (1 << PLACE_BITS) - 1)
        if inner_address is None:
            return (first, second), True

        def read(address: int, size: int) -> bytes:
            """Stack memory from the copy. Raises MemoryFault outside of it."""
            start = address - (slot - BELOW) + SNAPSHOT.size
            copy = snapshot[start : start + size] if start >= SNAPSHOT.size else b""
            if len(copy) != size:
                raise MemoryFault(address, size)
            return copy

        walk = CallerWalk(self._session.memory.architecture, self._session.unwinder, read, lambda: frame_pointer)
        # By the return address alone: the outer function may have jumped to its kernel, which has its frame now.
        is_open = self._all_calls.open_at(outer_address) if outer_address is not None else None
        outer = CallerCheck(outer_slot + 8, start=0, end=0, returns_to=second & _ADDRESS, is_open=is_open)
        try:
            return (first, second), walk.inside(inner_address, slot + 8, outer)
        except GdbextError:
            return (first, second), True


RING_BYTES = 1 << 26
"""64 MB hold 1.2 million dispatches: six seconds at 200,000 a second."""
SNAPSHOT_BYTES = 1 << 24
_MAX_RELATIONS, _MAX_THREADS = 1 << 16, 1 << 15


class SeenDispatch(NamedTuple):
    """One dispatch, as the BPF program recorded it."""

    time: int
    """Nanoseconds of CLOCK_MONOTONIC."""
    operator: int
    """Address of the OperatorEntry."""
    keyset: int
    slot: int
    """Stack address of the return address of its function."""
    returns_to: int
    tid: int
    place: int
    """The place's number."""
    depth: int
    """From 1, without the proof of nesting."""


class DispatchTracer(ProbeSet):
    """Traces from construction to close(); a context manager. Raises ProbesRefused, OSError."""

    def __init__(
        self,
        architecture: Architecture,
        pid: int,
        places: Sequence[TracePlace],
        wanted: Collection[int] = (),
        only: Filter = EVERYTHING,
    ) -> None:
        """``wanted``: the OperatorEntries that filtered places show; ``only``: the filter that the kernel applies."""
        super().__init__(architecture, pid)
        own, memory = self.own, self.kernel.memory
        self.last_read = 0.0  # microseconds from when all probes were in place to the last read()
        try:
            ring = own(memory(RING, 0, 0, RING_BYTES))
            self._states = states = own(memory(HASH, 8, THREAD_STATE, _MAX_THREADS))
            blank = own(memory(ARRAY, 4, THREAD_STATE, 1))
            self._relations = own(memory(HASH, 16, 8, _MAX_RELATIONS))
            snapshots = own(memory(RING, 0, 0, SNAPSHOT_BYTES))
            maps = TraceMaps(ring, states, blank, self.lost_counter, self.wanted, self._relations, snapshots)
            self._ring = UniformRing(ring, RING_BYTES, RECORD)
            self.callback(self._ring.close)
            self._snapshots = Ring(snapshots, SNAPSHOT_BYTES)
            self.callback(self._snapshots.close)
            self.want(wanted)
            self.start(places, tracing_program(architecture, maps, only))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic_ns()  # when all probes were in place (CLOCK_MONOTONIC)

    def read(self) -> bytes:
        """The records since the last call, for dispatches()."""
        self.last_read = (time.monotonic_ns() - self.started) / 1e3
        return self._ring.read()

    def dispatches(self, data: bytes) -> Iterable[SeenDispatch]:
        """The dispatches that read() returned, in order, without those from before all probes were in place."""
        places, started = self.places, self.started
        for time_seen, entry, keyset, slot, returns_to, tid, number, depth in self._ring.records(data):
            if time_seen >= started:
                operator = entry or places[number].operator
                yield SeenDispatch(time_seen, operator, keyset, slot, returns_to, tid, number, depth)

    def snapshots(self) -> Iterable[bytes]:
        """Copies of stacks, each of a new relation, for CallProof. Called after read(), it returns all that belong to
        the dispatches read."""
        return self._snapshots.pieces()

    def deny(self, relation: Relation) -> None:
        """Tell the kernel's program that dispatches with that relation are not nested. Raises OSError."""
        self.kernel.put(self._relations, struct.pack("<QQ", *relation), struct.pack("<Q", NOT_NESTED))

    def pieces(self, data: bytes, count: int) -> Iterable[bytes]:
        """The result of read(), split into parts of ``count`` records."""
        step = count * (HEADER + RECORD.size)
        return [data[start : start + step] for start in range(0, len(data), step)]

    def kinds(self, data: bytes) -> set[tuple[int, int, int]]:
        """Distinct (number of the place, OperatorEntry*, keyset) in the result of read(). Cheap even for a million
        records, since no record is unpacked."""
        words = memoryview(data).cast("Q")
        step = (HEADER + RECORD.size) // words.itemsize
        places = [word >> 32 & 0xFFFF for word in words[6::step].tolist()]
        kinds = set(zip(places, words[2::step].tolist(), words[3::step].tolist()))
        return {(place, entry or self.places[place].operator, keyset) for place, entry, keyset in kinds}

    def newest(self, data: bytes) -> int:
        """Nanoseconds (CLOCK_MONOTONIC) of the last dispatch in a result of read() that is not empty."""
        return int(RECORD.unpack_from(data, len(data) - RECORD.size)[0])

    def still_open(self, tid: int, target: Target) -> int:
        """Number of the thread's dispatches that are still on its stack, outermost ones first. Raises OSError."""
        state = self.kernel.get(self._states, struct.pack("<Q", tid), THREAD_STATE)
        if not state:
            return 0
        count: int = struct.unpack_from("<Q", state)[0]
        for number in range(min(count, DEPTH_LIMIT)):
            slot, returns_to = struct.unpack_from("<QQ", state, 16 + 16 * number)
            try:
                if target.memory.read(slot, 8) != struct.pack("<Q", returns_to & _ADDRESS):
                    return number
            except GdbextError:
                return number
        return count
