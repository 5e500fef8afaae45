"""Probes at many places of one process, all running one BPF program."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

from gdbext.arch.base import Architecture
from gdbext.probes.bpf import single_probes
from gdbext.probes.bpf.kernel import HASH, PER_CPU_ARRAY, Bpf, CounterMap, Place
from gdbext.probes.bpf.place_program import MAX_PLACES, TracePlace, cookie
from gdbext.probes.bpf.probe_keeper import ProbeKeeper

_MAX_OPERATORS = 1 << 14


class ProbeSet:
    """What keeps the probes in place; when it is closed, or this process ends, all is gone.

    ``lost`` counts what was seen and found no room; ``wanted`` is the map of operators that filtered places show.
    """

    def __init__(self, kernel: Bpf, architecture: Architecture) -> None:
        """Raises ProbesRefused."""
        self.kernel = kernel
        self._architecture = architecture
        self._descriptors: list[int] = []
        self._keepers: list[ProbeKeeper] = []
        self._program = -1
        self.lost: CounterMap = kernel.map(PER_CPU_ARRAY, 4, 1)
        self.own(self.lost.descriptor)
        self.wanted = self.own(kernel.memory(HASH, 8, 8, _MAX_OPERATORS))

    def own(self, descriptor: int) -> int:
        """Close it together with the rest."""
        self._descriptors.append(descriptor)
        return descriptor

    def want(self, operators: Iterable[int]) -> None:
        """Filtered places show the operators with these OperatorEntries from now on, too. Raises OSError."""
        for address in operators:
            self.kernel.put(self.wanted, struct.pack("<Q", address), bytes(8))

    def place(self, pid: int, places: Sequence[TracePlace], code: Callable[[], bytes]) -> None:
        """One link for each file. Raises ProbesRefused."""
        self._program = self.own(self.kernel.program(code()))
        self.add(pid, places)

    def add(self, pid: int, places: Sequence[TracePlace], first: int = 0) -> None:
        """More places for the program of place(), numbered from ``first`` on. Raises ProbesRefused."""
        by_file: dict[str, list[Place]] = {}
        for number, place in enumerate(places[: MAX_PLACES - first], start=first):
            value = cookie(self._architecture, number, place)
            by_file.setdefault(place.path, []).append(Place(place.site.offset, value))
        self._attach(pid, by_file, self._program)

    def attach(self, pid: int, places: Mapping[str, Sequence[Place]], code: bytes) -> None:
        """The same for places of any kind, by file. Raises ProbesRefused."""
        self._attach(pid, places, self.own(self.kernel.program(code)))

    def _attach(self, pid: int, places: Mapping[str, Sequence[Place]], program: int) -> None:
        if not self.kernel.has_many:
            single_probes.check(sum(map(len, places.values())))
        self._keepers.append(ProbeKeeper(self.kernel, self._architecture, program, pid, places))

    def total_lost(self) -> int:
        """How much was seen and found no room. Raises OSError."""
        return sum(count for _, count in self.lost.totals())

    def close(self) -> None:
        """Take all probes away; idempotent."""
        while self._keepers:
            self._keepers.pop().close()
        while self._descriptors:
            os.close(self._descriptors.pop())
