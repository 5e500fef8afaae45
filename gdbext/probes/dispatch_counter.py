"""Counts dispatches in the kernel: one number for each (place, operator, keyset, thread) that was seen."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from gdbext.arch.base import Architecture
from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.probes import bpf_program as bpf
from gdbext.probes.kernel import PER_CPU_HASH, Bpf
from gdbext.probes.place_program import MAX_PLACES, At, TracePlace, dispatch
from gdbext.probes.probe_set import ProbeSet

MAX_KEYS = 1 << 16
"""Combinations that are counted; a busy job has a few thousand."""
_KEY = struct.Struct("<QQQQ")
_PLACE, _ENTRY, _KEYSET, _THREAD, _ONE, _ZERO = -32, -24, -16, -8, -40, -48
"""The key on the program's stack, from its end, and what else it needs there."""


class DispatchCount(NamedTuple):
    """How often one thread dispatched an operator with a keyset: ``entry`` is its OperatorEntry."""

    entry: int
    keyset: int
    tid: int
    event: DispatchEvent
    times: int


class DispatchCounter:
    """Counts from construction to close(); a context manager. Raises ProbesRefused, OSError."""

    def __init__(
        self, architecture: Architecture, pid: int, places: Sequence[TracePlace], wanted: Collection[int] = ()
    ) -> None:
        """``wanted``: the OperatorEntries that filtered places count."""
        self._places = places
        kernel = Bpf.of(architecture)
        self._probes = ProbeSet(kernel, architecture)
        try:
            self._counts = kernel.map(PER_CPU_HASH, _KEY.size, MAX_KEYS)
            self._probes.own(self._counts.descriptor)
            self._probes.want(wanted)
            self._probes.place(pid, places, lambda: self._program(architecture))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic()

    def _program(self, architecture: Architecture) -> bpf.Code:
        return program(architecture, self._counts.descriptor, self._probes.lost.descriptor, self._probes.wanted)

    def __enter__(self) -> DispatchCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def counts(self) -> list[DispatchCount]:
        """What was counted so far. Raises OSError."""
        found = []
        for key, count in self._counts.totals():
            number, entry, keyset, tid = _KEY.unpack(key)
            place = self._places[number]
            found.append(DispatchCount(entry or place.operator, keyset, tid, place.event, count))
        return found

    def lost(self) -> int:
        """Dispatches that were seen and not counted, since there were too many combinations. Raises OSError."""
        return self._probes.total_lost()

    def close(self) -> None:
        """Take all probes away; idempotent."""
        self._probes.close()


def program(architecture: Architecture, counts: int, lost: int, wanted: int) -> bpf.Code:
    """Adds 1 to the counter of (place, operator, keyset, thread); a key that finds no room counts as lost."""
    add_one = [bpf.load(bpf.B1, bpf.B0, 0), bpf.increase(bpf.B1, 1), bpf.store(bpf.B0, 0, bpf.B1)]
    return bpf.assemble((
        *dispatch(architecture, At(_ENTRY, _KEYSET, _THREAD), wanted, None),
        bpf.keep_bits(bpf.B7, MAX_PLACES - 1), bpf.store(bpf.FRAME, _PLACE, bpf.B7),
        *bpf.look_up(counts, _PLACE), bpf.jump_unless_equal("count", bpf.B0, 0),
        bpf.store_constant(bpf.FRAME, _ONE, 1), bpf.load_map(bpf.B1, counts),
        bpf.move(bpf.B2, bpf.FRAME), bpf.increase(bpf.B2, _PLACE), bpf.move(bpf.B3, bpf.FRAME),
        bpf.increase(bpf.B3, _ONE), bpf.constant(bpf.B4, 0), bpf.call(bpf.MAP_UPDATE),
        bpf.jump_if_equal("end", bpf.B0, 0),
        bpf.store_constant(bpf.FRAME, _ZERO, 0), *bpf.look_up(lost, _ZERO), bpf.jump_if_equal("end", bpf.B0, 0),
        bpf.Label("count"), *add_one, bpf.Label("end"), bpf.end(),
    ))  # fmt: skip
