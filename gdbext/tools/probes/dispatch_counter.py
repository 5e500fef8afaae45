"""Counts dispatches in the kernel: by place, operator and keyset, on request also by thread or line; or all together.

DispatchActivity is the least of it: one probe that tells whether a process dispatches at all, and how much.
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.errors import GdbextError
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.bpf_kernel import HASH, PER_CPU_ARRAY, PER_CPU_HASH, Bpf, ProbePlace, possible_processors
from gdbext.tools.probes.bpf.place_program import EVERYTHING, MAX_PLACES, Filter, FramePath, TracePlace
from gdbext.tools.probes.bpf.probe_keeper import ProbeRun, ProbeSet
from gdbext.tools.probes.bpf.probe_programs import CELL, KEY, LINE, CounterMaps, cell_counts, program
from gdbext.tools.probes.site_scan import ProbePlaces
from gdbext.torch.assumed_symbols import STEP_CALLBACKS
from gdbext.torch.stack import DispatchEvent

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session


def filter_of(session: Session, tid: int | None, key: str) -> Filter:
    """The filter of a thread, and of a key's name; None and "" for all. Raises UsageError."""
    return Filter(tid, session.dispatcher.keys.selecting(key) if key else ())


_MAX_KEYS = 1 << 16
"""Combinations that are counted; a busy job has a few thousand."""


class DispatchCount(NamedTuple):
    """The count of one thread's dispatches of an operator with a keyset: ``entry`` is its OperatorEntry; ``tid`` may be
    0 where threads are not told apart; ``code`` and ``instruction`` are Python's, 0 where the line was not asked
    for."""

    entry: int
    keyset: int
    tid: int
    event: DispatchEvent
    times: int
    code: int = 0
    instruction: int = 0


class DispatchCounter(ProbeSet):
    """Counts from construction to close(); a context manager. Raises ProbesRefused, OSError."""

    def __init__(
        self,
        architecture: Architecture,
        pid: int,
        places: Sequence[TracePlace],
        wanted: Collection[int] = (),
        path: FramePath | None = None,
        states: Mapping[int, int] | None = None,
        only: Filter = EVERYTHING,
        by_thread: bool = False,
    ) -> None:
        """``wanted``: the OperatorEntries that filtered places count; ``path``: to the line of Python, from ``states``,
        which know_threads() explains; ``by_thread``: threads are told apart."""
        super().__init__(architecture, pid)
        self._with_cells = min(len(places), MAX_PLACES)
        self._has_lines = path is not None
        kernel = self.kernel
        try:
            self._key_size = KEY.size + (LINE.size if path else 0)
            self._counts = self.own(kernel.memory(PER_CPU_HASH, self._key_size, 8, _MAX_KEYS))
            self._cells: int | None = None
            if not by_thread and not path:
                self._cells = self.own(kernel.memory(PER_CPU_ARRAY, 4, CELL.size, max(1, self._with_cells)))
            self._states = self.own(kernel.memory(HASH, 8, 8, 1 << 14))
            self.want(wanted)
            self.know_threads(states or {})
            maps = CounterMaps(self._counts, self.lost_counter, self.wanted, self._states, self._cells)
            self.start(places, program(architecture, maps, path, only))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic()

    def know_threads(self, states: Mapping[int, int]) -> None:
        """Thread id → PyThreadState, for the lines. Raises OSError."""
        for tid, state in states.items():
            self.kernel.put(self._states, struct.pack("<Q", tid), struct.pack("<Q", state))

    def counts(self) -> list[DispatchCount]:
        """The counts so far. Raises OSError."""
        found: Counter[DispatchCount] = Counter()

        def add(number: int, entry: int, keyset: int, tid: int, times: int, line: Sequence[int] = (0, 0)) -> None:
            place = self.places[number]
            found[DispatchCount(entry or place.operator, keyset, tid, place.event, 0, *line)] += times

        for key, times in self.kernel.totals(self._counts, self._key_size):
            number, entry, keyset, tid = KEY.unpack_from(key)
            add(number, entry, keyset, tid, times, LINE.unpack_from(key, KEY.size) if self._has_lines else (0, 0))
        if self._cells is not None:
            processors = possible_processors()
            data = self.kernel.values(self._cells, self._with_cells, processors * CELL.size)
            for position, cell in enumerate(cell_counts(data)):
                if cell:
                    entry, keyset, times = cell
                    add(position // processors, entry, keyset, 0, times)
        return [count._replace(times=times) for count, times in found.items()]


_READS = 20
"""Times that the counter is read while a dispatch is waited for."""


class DispatchActivity:
    """Counts calls by a probe on what every ``Dispatcher::call`` and ``callBoxed`` asks for step callbacks."""

    def __init__(self, session: Session) -> None:
        """Raises GdbextError where the place is not found, ProbesRefused where no BPF program can be loaded."""
        places = ProbePlaces(session)
        self._architecture, self._pid = session.memory.architecture, session.target.pid
        self._places = {places.path: [ProbePlace(places.cheap_place(STEP_CALLBACKS), 0)]}
        os.close(Bpf.of(self._architecture).program(bpf.end()))

    def counting(self) -> CallCount:
        """Counts from now on. Raises ProbesRefused."""
        return CallCount(self._architecture, self._pid, self._places)

    def seen(self, seconds: float) -> int:
        """Number of dispatches until some were seen, 0 where there was none within that time. Raises ProbesRefused,
        OSError."""
        with self.counting() as count:
            for _ in range(_READS):
                time.sleep(seconds / _READS)
                if found := count.total():
                    return found
        return 0


class CallCount(ProbeRun):
    """The number of times that a process came by a place since it was made; a context manager."""

    def __init__(self, architecture: Architecture, pid: int, places: Mapping[str, Sequence[ProbePlace]]) -> None:
        """Place the probe. Raises ProbesRefused."""
        super().__init__(architecture, pid)
        try:
            self._counter = self.own(self.kernel.memory(PER_CPU_ARRAY, 4, 8, 1))
            code = (
                bpf.store_constant(bpf.FRAME, -8, 0),
                *bpf.look_up(self._counter, -8),
                bpf.jump_if_equal("end", bpf.B0, 0),
                *bpf.add_one(bpf.B0),
                bpf.Label("end"),
                bpf.end(),
            )
            self.attach(self.own(self.kernel.program(bpf.assemble(code))), places)
        except BaseException:
            self.close()
            raise

    def total(self) -> int:
        """The number so far. Raises OSError."""
        return sum(count for _, count in self.kernel.totals(self._counter, 4))


def call_count(session: Session) -> CallCount | None:
    """Counts the operator calls from now on; None where kernel probes are not permitted, or there is no process."""
    target = session.target
    if target.origin.is_core or target.origin.recorded or not session.has_torch:
        return None
    try:
        return DispatchActivity(session).counting()
    except GdbextError:
        return None
