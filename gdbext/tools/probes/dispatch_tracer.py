"""Traces dispatches in the kernel, with a record for each, and proves on copies of stacks which are nested."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.targets.base_target import Target
from gdbext.engine.unwind.caller_check import CallerCheck, CallerWalk
from gdbext.errors import GdbextError, MemoryFault
from gdbext.live.all_calls import AllCalls
from gdbext.tools.probes.bpf.bpf_kernel import ARRAY, HASH, RING
from gdbext.tools.probes.bpf.place_program import EVERYTHING, PLACE_BITS, Filter, TracePlace
from gdbext.tools.probes.bpf.probe_keeper import ProbeSet
from gdbext.tools.probes.bpf.trace_program import (
    BELOW,
    DEPTH_LIMIT,
    HEADER,
    NOT_NESTED,
    PARENT_PLACE,
    RECORD,
    SNAPSHOT,
    THREAD_STATE,
    Ring,
    TraceMaps,
    UniformRing,
    program,
)

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session

Relation = tuple[int, int]
"""Two dispatches on a stack: the distance between their return addresses, with the number of the inner place in the low
bits; the return address of the outer one, with the number of its place in the high bits."""
_ADDRESS = (1 << PARENT_PLACE) - 1


def relation(outer_slot: int, outer_returns: int, outer_place: int, slot: int, place: int) -> Relation:
    """The relation, as the kernel's program computes it."""
    return outer_slot - slot << PLACE_BITS | place, outer_returns | outer_place << PARENT_PLACE


class CallProof:
    """Unwinds copies of stacks. ``addresses``: number of a place → its absolute address."""

    def __init__(self, session: Session, addresses: Mapping[int, int]) -> None:
        self._session = session
        self._addresses = addresses

    @cached_property
    def _all_calls(self) -> AllCalls:
        return AllCalls(self._session)

    def check(self, snapshot: bytes) -> tuple[Relation, bool]:
        """(relation of a snapshot, whether the inner dispatch was called from inside of the outer one).

        True also where that cannot be disproved.
        """
        first, second, slot, frame_pointer = SNAPSHOT.unpack_from(snapshot)
        outer_address = self._addresses.get(second >> PARENT_PLACE)
        outer_slot = slot + (first >> PLACE_BITS)
        address = self._addresses.get(first & (1 << PLACE_BITS) - 1)
        if address is None:
            return (first, second), True
        lowest = slot - BELOW

        def read(at: int, size: int) -> bytes:
            start = at - lowest + SNAPSHOT.size
            copy = snapshot[start : start + size] if start >= SNAPSHOT.size else b""
            if len(copy) != size:
                raise MemoryFault(at, size)
            return copy

        walk = CallerWalk(self._session.memory.architecture, self._session.unwinder, read, lambda: frame_pointer)
        # By the return address alone: the outer function may have jumped to its kernel, which has its frame now.
        is_open = self._all_calls.open_at(outer_address) if outer_address is not None else None
        outer = CallerCheck(outer_slot + 8, 0, 0, second & _ADDRESS, is_open)
        try:
            return (first, second), walk.inside(address, slot + 8, outer)
        except GdbextError:
            return (first, second), True


RING_BYTES = 1 << 26
"""64 MB hold 1.2 million dispatches: six seconds at 200,000 a second."""
SNAPSHOT_BYTES = 1 << 24
_MAX_RELATIONS, _MAX_THREADS = 1 << 16, 1 << 15


class SeenDispatch(NamedTuple):
    """One record: nanoseconds of CLOCK_MONOTONIC, OperatorEntry*, keyset, the address of its return address and that
    itself, thread, number of the place, depth from 1 as far as the kernel's program knew."""

    time: int
    operator: int
    keyset: int
    slot: int
    returns_to: int
    tid: int
    place: int
    depth: int


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
        """``wanted``: the OperatorEntries that filtered places show; ``only``: what else the kernel leaves out."""
        super().__init__(architecture, pid)
        own, memory = self.own, self.kernel.memory
        self._last_read = 0
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
            self.start(places, program(architecture, maps, only))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic_ns()
        """The time before which not all probes were in place."""

    def read(self) -> bytes:
        """Read what has been seen since the last time, for dispatches()."""
        self._last_read = time.monotonic_ns()
        return self._ring.read()

    def dispatches(self, data: bytes) -> Iterable[SeenDispatch]:
        """The dispatches that read() gave, in order, without those from before all probes were in place."""
        places, started = self.places, self.started
        for when, entry, keyset, slot, returns_to, tid, number, depth in self._ring.records(data):
            if when >= started:
                operator = entry or places[number].operator
                yield SeenDispatch(when, operator, keyset, slot, returns_to, tid, number, depth)

    def snapshots(self) -> Iterable[bytes]:
        """Copies of stacks, each of a new relation, for CallProof. To be asked for after read(): those that belong to
        its dispatches are among them."""
        return self._snapshots.pieces()

    def deny(self, relation: Relation) -> None:
        """Have the kernel's program know that dispatches with that relation are not nested. Raises OSError."""
        self.kernel.put(self._relations, struct.pack("<QQ", *relation), struct.pack("<Q", NOT_NESTED))

    def pieces(self, data: bytes, count: int) -> Iterable[bytes]:
        """The dispatches that read() gave, ``count`` at a time."""
        step = count * (HEADER + RECORD.size)
        return [data[at : at + step] for at in range(0, len(data), step)]

    def kinds(self, data: bytes) -> set[tuple[int, int, int]]:
        """(place, OperatorEntry*, keyset) of what read() gave, each once; cheap even for a million records."""
        words = memoryview(data).cast("Q")
        step = (HEADER + RECORD.size) // words.itemsize
        places = [word >> 32 & 0xFFFF for word in words[6::step].tolist()]
        kinds = set(zip(places, words[2::step].tolist(), words[3::step].tolist()))
        return {(place, entry or self.places[place].operator, keyset) for place, entry, keyset in kinds}

    def newest(self, data: bytes) -> int:
        """The time of the last dispatch of those that read() gave, which are not none."""
        return int(RECORD.unpack_from(data, len(data) - RECORD.size)[0])

    @property
    def last_read(self) -> float:
        """Microseconds from when all probes were in place to the last read()."""
        return (self._last_read - self.started) / 1e3

    def still_open(self, tid: int, target: Target) -> int:
        """Number of the thread's dispatches that are on its stack now. Raises OSError."""
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
