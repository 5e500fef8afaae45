"""Counts dispatches in the kernel: one number for each (place, operator, keyset, thread) that was seen."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Mapping, Sequence

from gdbext.arch.base import Architecture
from gdbext.model.dispatch.dispatch_event import DispatchEvent
from gdbext.model.record import Record
from gdbext.probes.bpf import bpf_program as bpf
from gdbext.probes.bpf.kernel import HASH, PER_CPU_HASH, Bpf
from gdbext.probes.bpf.place_program import EVERYTHING, MAX_PLACES, At, Filter, TracePlace, dispatch
from gdbext.probes.bpf.probe_set import ProbeSet
from gdbext.probes.python_lines import FramePath, find_line

MAX_KEYS = 1 << 16
"""Combinations that are counted; a busy job has a few thousand."""
_KEY, _LINE = struct.Struct("<QQQQ"), struct.Struct("<QQ")
"""What is counted; and with the line of Python."""
_MAX_THREADS = 1 << 14
_PLACE, _ENTRY, _KEYSET, _THREAD, _CODE, _INSTRUCTION = -48, -40, -32, -24, -16, -8
"""The key on the program's stack, from its end,"""
_ONE, _ZERO, _SCRATCH = -56, -64, -72
"""and what else it needs there."""


class DispatchCount(Record):
    """How often one thread dispatched an operator with a keyset: ``entry`` is its OperatorEntry; ``code`` and
    ``instruction`` are Python's, 0 where the line was not asked for."""

    entry: int
    keyset: int
    tid: int
    event: DispatchEvent
    times: int
    code: int = 0
    instruction: int = 0


class DispatchCounter:
    """Counts from construction to close(); a context manager. Raises ProbesRefused, OSError."""

    def __init__(
        self, architecture: Architecture, pid: int, places: Sequence[TracePlace], wanted: Collection[int] = (),
        path: FramePath | None = None, states: Mapping[int, int] | None = None, only: Filter = EVERYTHING,
    ) -> None:  # fmt: skip
        """``wanted``: the OperatorEntries that filtered places count; ``path``: to the line of Python, from ``states``,
        which know_threads() explains."""
        self._places = places
        self._path = path
        self._only = only
        kernel = Bpf.of(architecture)
        self._probes = ProbeSet(kernel, architecture)
        try:
            size = _KEY.size + (_LINE.size if path is not None else 0)
            self._counts = kernel.map(PER_CPU_HASH, size, MAX_KEYS)
            self._probes.own(self._counts.descriptor)
            self._states = self._probes.own(kernel.memory(HASH, 8, 8, _MAX_THREADS))
            self._probes.want(wanted)
            self.know_threads(states or {})
            self._probes.place(pid, places, lambda: self._program(architecture))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic()

    def _program(self, architecture: Architecture) -> bpf.Code:
        maps = CounterMaps(self._counts.descriptor, self._probes.lost.descriptor, self._probes.wanted, self._states)
        return program(architecture, maps, self._path, self._only)

    def know_threads(self, states: Mapping[int, int]) -> None:
        """Thread id → PyThreadState, for the lines. Raises OSError."""
        for tid, state in states.items():
            self._probes.kernel.put(self._states, struct.pack("<Q", tid), struct.pack("<Q", state))

    def __enter__(self) -> DispatchCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def counts(self) -> list[DispatchCount]:
        """What was counted so far. Raises OSError."""
        found = []
        for key, count in self._counts.totals():
            number, entry, keyset, tid = _KEY.unpack_from(key)
            line = _LINE.unpack_from(key, _KEY.size) if self._path is not None else (0, 0)
            place = self._places[number]
            found.append(DispatchCount(entry or place.operator, keyset, tid, place.event, count, *line))
        return found

    def lost(self) -> int:
        """Dispatches that were seen and not counted, since there were too many combinations. Raises OSError."""
        return self._probes.total_lost()

    def close(self) -> None:
        """Take all probes away; idempotent."""
        self._probes.close()


class CounterMaps(Record):
    """Descriptors of what the program works with."""

    counts: int
    lost: int
    wanted: int
    states: int


def program(
    architecture: Architecture, maps: CounterMaps, path: FramePath | None = None, only: Filter = EVERYTHING
) -> bpf.Code:
    """Adds 1 to the counter of (place, operator, keyset, thread, line); a key that finds no room counts as lost."""
    line = [] if path is None else find_line(path, maps.states, _THREAD, _CODE, _INSTRUCTION, _SCRATCH)
    return bpf.assemble((
        *dispatch(architecture, At(_ENTRY, _KEYSET, _THREAD), maps.wanted, only), *line,
        bpf.keep_bits(bpf.B7, MAX_PLACES - 1), bpf.store(bpf.FRAME, _PLACE, bpf.B7),
        bpf.store_constant(bpf.FRAME, _ONE, 1), *bpf.add_to(maps.counts, _PLACE, _ONE, "dispatch"), bpf.jump("end"),
        *bpf.lose(maps.lost, _ZERO), bpf.Label("end"), bpf.end(),
    ))  # fmt: skip
