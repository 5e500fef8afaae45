"""Traces dispatches in the kernel, with a record for each, and proves on copies of stacks which are nested.

The BPF program keeps the open dispatches of each thread: the stack address of the return address of their function, and
the word there. A dispatch has ended when a later one of the thread is not below that address any more, or when the word
has changed. So no probe at a return is needed.

Because old words survive in holes of newer frames, that is not proof: not for the innermost one, nor for any around it.
So each dispatch below others has a hash of them all (places, return addresses, and distances on the stack). The first
time that the program sees one, it sends a copy of the stack and of the list. CallProof unwinds it, and tells the
program which of them is the innermost that the new dispatch was made from. Until then the records have the hash.
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
from gdbext.engine.unwind.caller_check import CallerWalk
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
RECORD = struct.Struct("<QQQQQQIHH")
"""The fields of SeenDispatch; the OperatorEntry* is 0 for the place's own."""
OPEN = struct.Struct("<QQQQ")
"""An open dispatch: stack address of its function's return address, that address, place, hash of it and those around
it."""
SNAPSHOT = struct.Struct("<QQQ")
"""Place, address of the return address, frame pointer; then the stack from BELOW bytes before that address on. The
thread's state comes before."""
BELOW = 120
STACK_BYTES = (1 << 15) - 1
"""Most bytes of a stack that are copied."""
PENDING = 0
"""The value of a hash whose dispatch is not proven to be inside any other one; the number of the innermost one around
it, plus 1, if that is proven."""
_FRAMES, _SNAPSHOT_AT = 16, 16 + OPEN.size * (DEPTH_LIMIT + 1)
THREAD_STATE = _SNAPSHOT_AT + SNAPSHOT.size + STACK_BYTES + 1
"""Bytes that are kept for a thread: number of open dispatches, hash of the newest and those around it, the open ones
(OPEN), outermost first, and room for a snapshot."""
_TIME, _ENTRY, _KEYSET, _SLOT, _RETURNS, _CHAIN, _THREAD = -56, -48, -40, -32, -24, -16, -8
"""The record on the program's stack, from its end."""
_KEY, _STACK_WORD, _ZERO, _HASH, _SIZE, _FRAME_POINTER = -64, -72, -80, -88, -96, -104
_WORD = 8
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
    chains: int
    """Hash → PENDING, or number + 1."""
    snapshots: int


def tracing_program(architecture: Architecture, maps: TraceMaps, only: Filter) -> bytes:
    """The BPF program that writes a record for each dispatch, and a copy of the stack for each new hash."""
    return bpf.assemble(f"""
        {load_dispatch(architecture, _AT, maps.wanted, only)}
        {return_address(architecture)}
        [fp + {_SLOT}] = r3
        call probe_read_user(fp + {_RETURNS}, 8, r3)
        {_load_state(maps)}
        {_close_ended(architecture, maps)}
        {_open_dispatch()}
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


def _close_ended(architecture: Architecture, maps: TraceMaps) -> str:
    """BPF code that sets r8 to the number of dispatches around this one, and _HASH to its hash; _CHAIN is the hash as
    long as r8 is not proven, else 0. One is over, with all inside of it, if its return address is not above ours on
    the stack (in r3 and r2), or is not there any more. The loop, with its number in r6, begins with the innermost one,
    because the kernel's verifier accepts numbers that get smaller."""
    frame_pointer = saved_registers(architecture).get(architecture.frame_pointer, 0)
    return f"""
        [fp + {_CHAIN}] = 0
        [fp + {_FRAME_POINTER}] = [r6 + {frame_pointer}]
        r8 = [r9 + 0] & {DEPTH_LIMIT}
        r6 = r8
    next:
        if r6 == 0 goto around
        r6 += -1
        r1 = r6
        {_OPEN_ADDRESS}
        r3 = [r1 + {_FRAMES}]
        r2 = [fp + {_SLOT}]
        if r3 <= r2 goto gone
        r0 = [r1 + {_FRAMES + 8}]
        [fp + {_SIZE}] = r0
        call probe_read_user(fp + {_STACK_WORD}, 8, r3)
        if [fp + {_SIZE}] == [fp + {_STACK_WORD}] goto next
    gone:
        r8 = r6
        goto next
    around:
        {_hash("assumed")}
        if r8 == 0 goto known
        [fp + {_CHAIN}] = [fp + {_HASH}]
        {bpf.look_up(maps.chains, _HASH)}
        if r0 == 0 goto unproven
        r1 = [r0 + 0]
        if r1 == {PENDING} goto known
        [fp + {_CHAIN}] = 0
        r1 += -1
        r1 &= {DEPTH_LIMIT}
        if r1 == r8 goto known
        r8 = r1
        {_hash("proven")}
        goto known
    unproven:
        {_copy_stack(maps)}
    known:"""


_OPEN_ADDRESS = f"""
        r1 &= {DEPTH_LIMIT}
        r1 <<= 5
        r1 += r9"""
"""Turns the number of an open dispatch in r1 into the address of its entry in the thread's state, less _FRAMES."""
_FACTOR = -1640531535
"""2^32 divided by the golden ratio, odd, which spreads a hash over 64 bits."""


def _hash(name: str) -> str:
    """BPF code that stores at _HASH the hash of this dispatch and the r8 dispatches around it. ``name`` makes the
    labels unique."""

    def mix(word: str) -> str:
        return f"""
        r0 ^= {word}
        r0 *= {_FACTOR}
        r2 = r0
        r2 >>= 29
        r0 ^= r2"""

    return f"""
        r0 = 0
        r3 = 0
        if r8 == 0 goto outermost_{name}
        r1 = r8 + -1
        {_OPEN_ADDRESS}
        r0 = [r1 + {_FRAMES + 24}]
        r3 = [r1 + {_FRAMES}]
        r2 = [fp + {_SLOT}]
        r3 -= r2
    outermost_{name}:
        r3 <<= {PLACE_BITS}
        r1 = r7 & {MAX_PLACES - 1}
        r3 += r1
        {mix("r3")}
        r3 = [fp + {_RETURNS}]
        {mix("r3")}
        [fp + {_HASH}] = r0"""


def _copy_stack(maps: TraceMaps) -> str:
    """BPF code that sends the open dispatches, and a snapshot of the stack up to the outermost one, and makes the new
    hash PENDING."""
    return f"""
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
        if r0 != 0 goto known
        [r9 + 0] = r8
        [r9 + 8] = [fp + {_HASH}]
        r1 = r7 & {MAX_PLACES - 1}
        [r9 + {_SNAPSHOT_AT}] = r1
        [r9 + {_SNAPSHOT_AT + 8}] = [fp + {_SLOT}]
        [r9 + {_SNAPSHOT_AT + 16}] = [fp + {_FRAME_POINTER}]
        r3 = [fp + {_SIZE}] & {STACK_BYTES}
        r3 += {_SNAPSHOT_AT + SNAPSHOT.size}
        call ringbuf_output(map {maps.snapshots}, r9, r3, {_NO_WAKEUP})
        if r0 != 0 goto known
        [fp + {_ZERO}] = {PENDING}
        {bpf.put(maps.chains, _HASH, _ZERO)}"""


def _open_dispatch() -> str:
    """BPF code that adds this dispatch to the open ones, and sets r8 to its depth. Those beyond DEPTH_LIMIT are not
    followed."""
    return f"""
        if r8 > {DEPTH_LIMIT - 1} goto deep
        r1 = r8
        {_OPEN_ADDRESS}
        [r1 + {_FRAMES}] = [fp + {_SLOT}]
        [r1 + {_FRAMES + 8}] = [fp + {_RETURNS}]
        r2 = r7 & {MAX_PLACES - 1}
        [r1 + {_FRAMES + 16}] = r2
        [r1 + {_FRAMES + 24}] = [fp + {_HASH}]
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


class CallProof:
    """Proves by unwinding copies of stacks which dispatches are nested."""

    def __init__(self, session: Session, addresses: Mapping[int, int]) -> None:
        """``addresses``: number of a place → its address."""
        self._session = session
        self._addresses = addresses

    @cached_property
    def _all_calls(self) -> AllCalls:
        return AllCalls(self._session)

    def check(self, snapshot: bytes) -> tuple[int, int | None]:
        """(hash of a dispatch and those around it, number of those that it was made from inside of; None if that is not
        proven): copies of the stack that are too short, or code without call frame information, prove nothing."""
        count, chain = struct.unpack_from("<QQ", snapshot)
        place, slot, frame_pointer = SNAPSHOT.unpack_from(snapshot, _SNAPSHOT_AT)
        begin, address = _SNAPSHOT_AT + SNAPSHOT.size, self._addresses.get(place)
        around = [OPEN.unpack_from(snapshot, _FRAMES + OPEN.size * number) for number in range(min(count, DEPTH_LIMIT))]
        if address is None or not around:
            return chain, None

        def read(address: int, size: int) -> bytes:
            """Stack memory from the copy. Raises MemoryFault outside of it."""
            start = address - (slot - BELOW) + begin
            copy = snapshot[start : start + size] if start >= begin else b""
            if len(copy) != size:
                raise MemoryFault(address, size)
            return copy

        walk = CallerWalk(self._session.memory.architecture, self._session.unwinder, read, lambda: frame_pointer)
        top = min(around[0][0] + _WORD, slot - BELOW + len(snapshot) - begin)
        try:
            callers, known = walk.callers(address, slot + _WORD, top)
        except GdbextError:
            return chain, None
        for number, (outer, _, outer_place, _) in zip(range(len(around), 0, -1), reversed(around)):
            # By the frame's end alone: the outer function may have jumped to its kernel, which has its frame now.
            if outer + _WORD in callers and self._is_open(outer_place, callers[outer + _WORD]):
                return chain, number
            if outer + _WORD > known:
                return chain, None
        return chain, 0

    def _is_open(self, place: int, returns_to: int) -> bool:
        """True if the dispatch of the function at a place is not over where one of its calls returns to."""
        address = self._addresses.get(place)
        is_open = self._all_calls.open_at(address) if address is not None else None
        return not is_open or is_open(returns_to)


RING_BYTES = 1 << 26
"""64 MB hold 1.2 million dispatches: six seconds at 200,000 a second."""
SNAPSHOT_BYTES = 1 << 25
_MAX_CHAINS, _MAX_THREADS = 1 << 16, 1 << 15


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
    chain: int
    """The hash of the dispatch and those around it if ``depth`` is not proven, else 0."""
    tid: int
    place: int
    """The place's number."""
    depth: int
    """Number of the thread's open dispatches with this one, as far as it was proven."""


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
            self._chains = own(memory(HASH, 8, 8, _MAX_CHAINS))
            snapshots = own(memory(RING, 0, 0, SNAPSHOT_BYTES))
            maps = TraceMaps(ring, states, blank, self.lost_counter, self.wanted, self._chains, snapshots)
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
        for time_seen, entry, keyset, slot, returns_to, chain, tid, number, depth in self._ring.records(data):
            if time_seen >= started:
                operator = entry or places[number].operator
                yield SeenDispatch(time_seen, operator, keyset, slot, returns_to, chain, tid, number, depth)

    def snapshots(self) -> Iterable[bytes]:
        """Copies of stacks, each of a new hash, for CallProof. Called after read(), it returns all that belong to
        the dispatches read."""
        return self._snapshots.pieces()

    def prove(self, chain: int, around: int) -> None:
        """Tell the kernel's program the number of dispatches that are really around those with that hash. Raises
        OSError."""
        self.kernel.put(self._chains, struct.pack("<Q", chain), struct.pack("<Q", around + 1))

    def pieces(self, data: bytes, count: int) -> Iterable[bytes]:
        """The result of read(), split into parts of ``count`` records."""
        step = count * (HEADER + RECORD.size)
        return [data[start : start + step] for start in range(0, len(data), step)]

    def kinds(self, data: bytes) -> set[tuple[int, int, int]]:
        """Distinct (number of the place, OperatorEntry*, keyset) in the result of read(). Cheap even for a million
        records, since no record is unpacked."""
        words = memoryview(data).cast("Q")
        step = (HEADER + RECORD.size) // words.itemsize
        places = [word >> 32 & 0xFFFF for word in words[7::step].tolist()]
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
            slot, returns_to, _, _ = OPEN.unpack_from(state, _FRAMES + OPEN.size * number)
            try:
                if target.memory.read(slot, 8) != struct.pack("<Q", returns_to):
                    return number
            except GdbextError:
                return number
        return count
