"""Traces dispatches in the kernel: a record for each of them.

Was a dispatch made from inside of another one? Proven on a copy of the stack between the two, by unwinding it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.targets.base_target import Target
from gdbext.engine.unwind.caller_check import CallerCheck, CallerWalk
from gdbext.errors import GdbextError, MemoryFault
from gdbext.live.all_calls import AllCalls
from gdbext.live.operator_functions import OperatorFunctions
from gdbext.tools.probes.bpf.bpf_kernel import ARRAY, HASH, RING, Bpf
from gdbext.tools.probes.bpf.place_program import EVERYTHING, MAX_PLACES, PLACE_BITS, Filter, TracePlace
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
"""Distance between the two return addresses on the stack, with the number of the inner place below it; the return
address of the outer one, with the number of its place above it."""
_ADDRESS = (1 << PARENT_PLACE) - 1


def relation(outer_slot: int, outer_returns: int, outer_place: int, slot: int, place: int) -> Relation:
    """The relation, as the kernel's program computes it."""
    return outer_slot - slot << PLACE_BITS | place, outer_returns | outer_place << PARENT_PLACE


class CallProof:
    """Unwinds copies. ``address_of`` gives the absolute address of a place by its number."""

    def __init__(self, session: Session, addresses: dict[int, int]) -> None:
        self._session = session
        self._addresses = addresses

    @cached_property
    def _all_calls(self) -> AllCalls:
        return AllCalls(self._session, OperatorFunctions(self._session))

    def holds(self, snapshot: bytes) -> tuple[Relation, bool]:
        """Check what a snapshot is about, and whether the inner dispatch was called from inside of the outer.

        True also where that cannot be disproved.
        """
        first, second, slot, frame_pointer = SNAPSHOT.unpack_from(snapshot)
        about = (first, second)
        outer_place = self._addresses.get(second >> PARENT_PLACE)
        outer_slot = slot + (first >> PLACE_BITS)
        place = self._addresses.get(first & (1 << PLACE_BITS) - 1)
        if place is None:
            return about, True
        stack = _Copy(snapshot, slot - BELOW)
        architecture = self._session.memory.architecture
        walk = CallerWalk(architecture, self._session.unwinder, stack.read, lambda: frame_pointer)
        # By the return address alone: the outer function may have jumped to its kernel, which has its frame now.
        is_open = self._all_calls.open_at(outer_place) if outer_place is not None else None
        outer = CallerCheck(outer_slot + 8, 0, 0, second & _ADDRESS, is_open)
        try:
            return about, walk.inside(place, slot + 8, outer)
        except GdbextError:
            return about, True


class _Copy:
    """A piece of a stack."""

    def __init__(self, snapshot: bytes, low: int) -> None:
        self._snapshot = snapshot
        self._low = low - SNAPSHOT.size

    def read(self, address: int, size: int) -> bytes:
        """Read from the process's memory. Raises MemoryFault."""
        start = address - self._low
        found = self._snapshot[start : start + size] if start >= SNAPSHOT.size else b""
        if len(found) != size:
            raise MemoryFault(address, size)
        return found


RING_BYTES = 1 << 26
"""64 MB hold 1.2 million dispatches: six seconds at 200,000 a second."""
SNAPSHOT_BYTES = 1 << 24
_MAX_RELATIONS = 1 << 16
_MAX_THREADS = 1 << 15


class SeenDispatch(NamedTuple):
    """One record: nanoseconds of CLOCK_MONOTONIC, OperatorEntry*, keyset, where its return address is and what that is,
    thread, number of the place, depth from 1 as far as the kernel's program knew."""

    time: int
    operator: int
    keyset: int
    slot: int
    returns_to: int
    tid: int
    place: int
    depth: int


class DispatchTracer:
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
        self.places = [*places]
        self._pid = pid
        kernel = Bpf.of(architecture)
        self.probes = ProbeSet(kernel, architecture)
        self._drained = 0
        self._ring: UniformRing | None = None
        self._snapshots: Ring | None = None
        try:
            ring = self.probes.own(kernel.memory(RING, 0, 0, RING_BYTES))
            self._states = states = self.probes.own(kernel.memory(HASH, 8, THREAD_STATE, _MAX_THREADS))
            blank = self.probes.own(kernel.memory(ARRAY, 4, THREAD_STATE, 1))
            self._relations = self.probes.own(kernel.memory(HASH, 16, 8, _MAX_RELATIONS))
            snapshots = self.probes.own(kernel.memory(RING, 0, 0, SNAPSHOT_BYTES))
            maps = TraceMaps(
                ring, states, blank, self.probes.lost.descriptor, self.probes.wanted, self._relations, snapshots
            )
            self._ring = UniformRing(ring, RING_BYTES, RECORD)
            self._snapshots = Ring(snapshots, SNAPSHOT_BYTES)
            self.probes.want(wanted)
            self.probes.place(pid, places, lambda: program(architecture, maps, only))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic_ns()
        """The time before which not all probes were in place."""

    def add(self, places: Sequence[TracePlace]) -> None:
        """Trace at these, too, from now on. Raises ProbesRefused."""
        first = len(self.places)
        self.places += places[: MAX_PLACES - first]
        self.probes.add(self._pid, self.places[first:], first)

    def read(self) -> bytes:
        """Read what has been seen since the last time, for dispatches()."""
        self._drained = time.monotonic_ns()
        return self._ring.read() if self._ring else b""

    def dispatches(self, data: bytes) -> Iterable[SeenDispatch]:
        """The dispatches that read() gave, in order, without what came before all probes were in place."""
        places, started = self.places, self.started
        for when, entry, keyset, slot, returns_to, tid, number, depth in self._records(data):
            if when >= started:
                operator = entry or places[number].operator
                yield SeenDispatch(when, operator, keyset, slot, returns_to, tid, number, depth)

    def _records(self, data: bytes) -> Iterable[tuple[int, ...]]:
        return self._ring.records(data) if self._ring else ()

    def snapshots(self) -> Iterable[bytes]:
        """Copies of stacks, each of a relation that has not been seen before (trace_places.py). To be asked for after
        read(): those that belong to what it gave are among them."""
        return self._snapshots.pieces() if self._snapshots else ()

    def deny(self, relation: Relation) -> None:
        """The kernel's program takes that relation for what it is: no call. Raises OSError."""
        self.probes.kernel.put(self._relations, struct.pack("<QQ", *relation), struct.pack("<Q", NOT_NESTED))

    def pieces(self, data: bytes, count: int) -> Iterable[bytes]:
        """The dispatches that read() gave, so many at a time."""
        step = count * (HEADER + RECORD.size)
        return [data[at : at + step] for at in range(0, len(data), step)]

    def kinds(self, data: bytes) -> set[tuple[int, int, int]]:
        """(place, OperatorEntry*, keyset) of what read() gave, each once; cheap even for a million records."""
        words = memoryview(data).cast("Q")
        step = (HEADER + RECORD.size) // words.itemsize
        places = [word >> 32 & 0xFFFF for word in words[6::step].tolist()]
        found = set(zip(places, words[2::step].tolist(), words[3::step].tolist()))
        return {(place, entry or self.places[place].operator, keyset) for place, entry, keyset in found}

    def newest(self, data: bytes) -> int:
        """The time of the last dispatch of those that read() gave, which are not none."""
        return int(RECORD.unpack_from(data, len(data) - RECORD.size)[0])

    @property
    def drained(self) -> float:
        """Microseconds from when all probes were in place to the last read()."""
        return (self._drained - self.started) / 1e3

    def still_open(self, tid: int, target: Target) -> int:
        """Number of the thread's dispatches that are on its stack now. Raises OSError."""
        state = self.probes.kernel.get(self._states, struct.pack("<Q", tid), THREAD_STATE)
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

    def lost(self) -> int:
        """Dispatches that found no room in the ring. Raises OSError."""
        return self.probes.total_lost()

    def __enter__(self) -> DispatchTracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take all probes away; idempotent."""
        for ring in (self._ring, self._snapshots):
            if ring:
                ring.close()
        self._ring = self._snapshots = None
        self.probes.close()
