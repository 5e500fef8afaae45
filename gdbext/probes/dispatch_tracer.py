"""Traces dispatches in the kernel: a record for each of them."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Sequence

from gdbext.arch.base import Architecture
from gdbext.errors import GdbextError
from gdbext.model.record import Record
from gdbext.probes.bpf.kernel import ARRAY, HASH, RING, Bpf
from gdbext.probes.bpf.place_program import EVERYTHING, MAX_PLACES, Filter, TracePlace
from gdbext.probes.bpf.probe_set import ProbeSet
from gdbext.probes.bpf.ring import HEADER, Ring, UniformRing
from gdbext.probes.bpf.trace_program import DEPTH_LIMIT, NOT_NESTED, RECORD, THREAD_STATE, TraceMaps, program
from gdbext.probes.places.call_proof import Relation
from gdbext.targets.base import Target

RING_BYTES = 1 << 26
"""64 MB hold 1.2 million dispatches: six seconds at 200,000 a second."""
SNAPSHOT_BYTES = 1 << 24
_MAX_RELATIONS = 1 << 16
_MAX_THREADS = 1 << 15


class SeenDispatch(Record):
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
        self, architecture: Architecture, pid: int, places: Sequence[TracePlace],
        wanted: Collection[int] = (), only: Filter = EVERYTHING, ring_bytes: int = RING_BYTES,
    ) -> None:  # fmt: skip
        """``wanted``: the OperatorEntries that filtered places show; ``only``: what else the kernel leaves out."""
        self.places = [*places]
        self._pid = pid
        kernel = Bpf.of(architecture)
        self.probes = ProbeSet(kernel, architecture)
        self._drained = 0
        self._ring: UniformRing | None = None
        self._snapshots: Ring | None = None
        try:
            ring = self.probes.own(kernel.memory(RING, 0, 0, ring_bytes))
            self._states = states = self.probes.own(kernel.memory(HASH, 8, THREAD_STATE, _MAX_THREADS))
            blank = self.probes.own(kernel.memory(ARRAY, 4, THREAD_STATE, 1))
            self._relations = self.probes.own(kernel.memory(HASH, 16, 8, _MAX_RELATIONS))
            snapshots = self.probes.own(kernel.memory(RING, 0, 0, SNAPSHOT_BYTES))
            maps = TraceMaps(
                ring, states, blank, self.probes.lost.descriptor, self.probes.wanted, self._relations, snapshots
            )
            self._ring = UniformRing(ring, ring_bytes, RECORD)
            self._snapshots = Ring(snapshots, SNAPSHOT_BYTES)
            self.probes.want(wanted)
            self.probes.place(pid, places, lambda: program(architecture, maps, only))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic_ns()
        """Before, not all probes were in place."""

    def add(self, places: Sequence[TracePlace]) -> None:
        """Trace at these, too, from now on. Raises ProbesRefused."""
        first = len(self.places)
        self.places += places[: MAX_PLACES - first]
        self.probes.add(self._pid, self.places[first:], first)

    def read(self) -> bytes:
        """What has been seen since the last time, for dispatches()."""
        self._drained = time.monotonic_ns()
        return self._ring.read() if self._ring is not None else b""

    def dispatches(self, data: bytes) -> Iterable[SeenDispatch]:
        """What read() gave, in order, without what came before all probes were in place."""
        places, started = self.places, self.started
        for when, entry, keyset, slot, returns_to, tid, number, depth in self._records(data):
            if when >= started:
                operator = entry or places[number].operator
                yield SeenDispatch(when, operator, keyset, slot, returns_to, tid, number, depth)

    def _records(self, data: bytes) -> Iterable[tuple[int, ...]]:
        return self._ring.records(data) if self._ring is not None else ()

    def snapshots(self) -> Iterable[bytes]:
        """Copies of stacks, each of a relation that has not been seen before (call_proof.py). To be asked for after
        read(): those that belong to what it gave are among them."""
        return self._snapshots.pieces() if self._snapshots is not None else ()

    def deny(self, relation: Relation) -> None:
        """The kernel's program takes that relation for what it is: no call. Raises OSError."""
        self.probes.kernel.put(self._relations, struct.pack("<QQ", *relation), struct.pack("<Q", NOT_NESTED))

    def pieces(self, data: bytes, count: int) -> Iterable[bytes]:
        """What read() gave, so many dispatches at a time."""
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
        """When the last dispatch was seen of those that read() gave, which are not none."""
        return int(RECORD.unpack_from(data, len(data) - RECORD.size)[0])

    @property
    def drained(self) -> float:
        """Microseconds from when all probes were in place to the last read()."""
        return (self._drained - self.started) / 1e3

    def still_open(self, tid: int, target: Target) -> int:
        """How many of the thread's dispatches are on its stack now. Raises OSError."""
        state = self.probes.kernel.get(self._states, struct.pack("<Q", tid), THREAD_STATE)
        count = struct.unpack_from("<Q", state)[0] if state is not None else 0
        for number in range(min(count, DEPTH_LIMIT) if state is not None else 0):
            slot, returns_to = struct.unpack_from("<QQ", state or b"", 16 + 16 * number)
            try:
                if target.read(slot, 8) != struct.pack("<Q", returns_to):
                    return number
            except GdbextError:
                return number
        return int(count)

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
            if ring is not None:
                ring.close()
        self._ring = self._snapshots = None
        self.probes.close()
