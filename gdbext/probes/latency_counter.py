"""Counts in the kernel how long the calls of operators take."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Mapping, Sequence

from gdbext.arch.base import Architecture
from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.record import Record
from gdbext.probes.bpf.kernel import LRU_HASH, PER_CPU_HASH, Bpf, Place
from gdbext.probes.bpf.latency_program import COUNT_KEY, OPEN_KEY, OPEN_VALUE, LatencyMaps, entry_program, exit_program
from gdbext.probes.bpf.place_program import EVERYTHING, Filter, TracePlace
from gdbext.probes.bpf.probe_set import ProbeSet

_MAX_OPEN = 1 << 14
"""Calls that are open at once; those that an exception left stay among them until others take their room."""
_MAX_COUNTS = 1 << 16
_KEY = struct.Struct("<QQQQ")


class LatencyCount(Record):
    """``amount`` of a bucket (latency_program.py) of the calls of an OperatorEntry with a keyset."""

    entry: int
    keyset: int
    event: DispatchEvent
    bucket: int
    amount: int


class LatencyCounter:
    """Measures from construction to close(); a context manager. Raises ProbesRefused, OSError."""

    def __init__(
        self, architecture: Architecture, pid: int, places: Sequence[TracePlace],
        returns: Mapping[str, Sequence[Place]], wanted: Collection[int],
        only: Filter = EVERYTHING,
    ) -> None:  # fmt: skip
        """``places``: of calls; ``returns``: where their functions return; ``wanted``: the OperatorEntries that
        filtered places measure."""
        self._places = places
        kernel = Bpf.of(architecture)
        self._probes = ProbeSet(kernel, architecture)
        try:
            open_calls = self._probes.own(kernel.memory(LRU_HASH, OPEN_KEY, OPEN_VALUE, _MAX_OPEN))
            self._counts = kernel.map(PER_CPU_HASH, COUNT_KEY, _MAX_COUNTS)
            self._probes.own(self._counts.descriptor)
            maps = LatencyMaps(
                open_calls, self._counts.descriptor, self._probes.lost.descriptor, self._probes.wanted
            )
            self._probes.want(wanted)
            # The returns first: no call that was seen to begin is to be missed when it ends.
            self._probes.attach(pid, returns, exit_program(architecture, maps))
            self._probes.place(pid, places, lambda: entry_program(architecture, maps, only))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic()

    def counts(self) -> list[LatencyCount]:
        """What was counted so far. Raises OSError."""
        found = []
        for key, amount in self._counts.totals():
            entry, keyset, number, bucket = _KEY.unpack(key)
            place = self._places[number]
            found.append(LatencyCount(entry or place.operator, keyset, place.event, bucket, amount))
        return found

    def lost(self) -> int:
        """Calls that were seen and not counted. Raises OSError."""
        return self._probes.total_lost()

    def __enter__(self) -> LatencyCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take all probes away; idempotent."""
        self._probes.close()
