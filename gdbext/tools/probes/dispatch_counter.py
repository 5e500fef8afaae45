"""Counts dispatches in the kernel: by place, operator and keyset, on request also by thread or line; or all together.

Each place has a cell on each CPU, which counts the first operator and keyset seen there: an array access avoids calls
of helpers, 15 ns each. All others are counted in a map by thread. There, no two programs count at once, because the
kernel preempts a program only for other threads; in a cell they may, so its instructions are atomic.
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.errors import GdbextError
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.bpf_kernel import HASH, PER_CPU_ARRAY, PER_CPU_HASH, Bpf, ProbePlace, possible_cpus
from gdbext.tools.probes.bpf.place_program import (
    EVERYTHING,
    MAX_PLACES,
    Filter,
    FramePath,
    StackPlaces,
    TracePlace,
    find_line,
    load_lookup,
    load_thread,
)
from gdbext.tools.probes.bpf.probe_keeper import ProbeRun, ProbeSet
from gdbext.tools.probes.site_scan import ProbePlaces
from gdbext.torch.assumed_symbols import STEP_CALLBACKS
from gdbext.torch.stack import DispatchEvent

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session


def filter_of(session: Session, tid: int | None, key: str) -> Filter:
    """The filter of a thread, and of a key's name; None and "" for all. Raises UsageError."""
    return Filter(tid, session.dispatcher.keys.selecting(key) if key else ())


KEY, LINE = struct.Struct("<QQQQ"), struct.Struct("<QQ")
"""The key and the line of a count in the map: number of the place, OperatorEntry* (0: the place's own), keyset, thread;
and with the line of Python, code object and instruction."""
CELL = struct.Struct("<QQQ")
"""The operator's mark, the keyset's mark, the count."""
_PLACE, _ENTRY, _KEYSET, _THREAD, _CODE, _INSTRUCTION = -48, -40, -32, -24, -16, -8
_ONE, _ZERO, _SCRATCH = -56, -64, -72
"""Offsets of the program's stack variables from its end; the first six are the key."""
_AT = StackPlaces(_ENTRY, _KEYSET, _THREAD)
_OPERATOR_BIT = 1
"""Makes an address a mark: an address is even, and may be 0."""


class CounterMaps(NamedTuple):
    """Fds of the maps that the program uses; ``cells`` is None where threads or lines are distinguished."""

    counts: int
    lost: int
    wanted: int
    states: int
    cells: int | None = None


def counting_program(
    architecture: Architecture,
    maps: CounterMaps,
    path: FramePath | None = None,
    only: Filter = EVERYTHING,
) -> bytes:
    """The BPF program that adds 1 to the counter of (place, operator, keyset, thread, line), or counts a key without
    room as lost. ``path``: also the line of Python; ``only``: the filter that the kernel applies."""
    line = find_line(path, maps.states, _THREAD, _CODE, _INSTRUCTION, _SCRATCH) if path else ""
    needs_thread = maps.cells is None or bool(only.tid)
    return bpf.assemble(f"""
        r6 = r1
        {load_thread(_AT, only) if needs_thread else ""}
        {load_lookup(architecture, _AT, maps.wanted, only)}
        {line}
        r7 &= {MAX_PLACES - 1}
        [fp + {_PLACE}] = r7
        {"" if maps.cells is None else _count_in_cell(maps.cells)}
        {"" if needs_thread else load_thread(_AT)}
        [fp + {_ONE}] = 1
        {bpf.add_to(maps.counts, _PLACE, _ONE, "dispatch")}
        goto end
        {bpf.count_lost(maps.lost, _ZERO)}
    """)


def _count_in_cell(cells: int) -> str:
    """BPF code that counts in the place's cell and goes to "end" if the cell belongs to this operator and keyset.
    ``cells``: the map's fd."""
    return f"""
        {bpf.look_up(cells, _PLACE)}
        if r0 == 0 goto no_cell
        r8 = r0
        r1 = [fp + {_ENTRY}] | {_OPERATOR_BIT}
        {_claim("own_operator", 0)}
        r1 = [fp + {_KEYSET}] + 1
        if r1 == 0 goto no_cell
        {_claim("own_keyset", 8)}
        r1 = 1
        atomic_add [r8 + 16] r1
        goto end
    no_cell:"""


def _claim(name: str, offset: int) -> str:
    """BPF code that goes to "no_cell" unless the word at ``offset`` of the cell at r8 is the mark in r1, or was 0 and
    becomes it. ``name``: the label after this code."""
    return f"""
        r0 = [r8 + {offset}]
        if r0 == r1 goto {name}
        if r0 != 0 goto no_cell
        atomic_exchange_if_r0 [r8 + {offset}] r1
        if r0 == 0 goto {name}
        if r0 != r1 goto no_cell
    {name}:"""


def cell_counts(data: bytes) -> Iterator[tuple[int, int, int] | None]:
    """(OperatorEntry* or 0 for the place's own, keyset, count) of each cell; None for a cell without a count."""
    for operator, keyset, count in CELL.iter_unpack(data):
        yield (operator & ~_OPERATOR_BIT, keyset - 1, count) if operator and keyset and count else None


class DispatchCount(NamedTuple):
    """The count of one thread's dispatches of an operator with a keyset: ``entry`` is its OperatorEntry; ``tid`` is 0
    where threads are not distinguished; ``code`` and ``instruction`` are Python's, 0 without --by line."""

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
        which set_thread_states() explains; ``by_thread``: threads are distinguished."""
        super().__init__(architecture, pid)
        self._cell_count = min(len(places), MAX_PLACES)
        self._has_lines = path is not None
        kernel = self.kernel
        try:
            self._key_size = KEY.size + (LINE.size if path else 0)
            # A busy job has a few thousand combinations.
            self._counts = self.own(kernel.memory(PER_CPU_HASH, self._key_size, 8, 1 << 16))
            self._cells: int | None = None
            if not by_thread and not path:
                self._cells = self.own(kernel.memory(PER_CPU_ARRAY, 4, CELL.size, max(1, self._cell_count)))
            self._states = self.own(kernel.memory(HASH, 8, 8, 1 << 14))
            self.want(wanted)
            self.set_thread_states(states or {})
            maps = CounterMaps(self._counts, self.lost_counter, self.wanted, self._states, self._cells)
            self.start(places, counting_program(architecture, maps, path, only))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic()

    def set_thread_states(self, states: Mapping[int, int]) -> None:
        """Give the kernel's program thread id → PyThreadState, which it finds lines by. Raises OSError."""
        for tid, state in states.items():
            self.kernel.put(self._states, struct.pack("<Q", tid), struct.pack("<Q", state))

    def counts(self) -> list[DispatchCount]:
        """The counts so far. Raises OSError."""
        totals: Counter[DispatchCount] = Counter()
        for key, times in self.kernel.totals(self._counts, self._key_size):
            number, entry, keyset, tid = KEY.unpack_from(key)
            line = LINE.unpack_from(key, KEY.size) if self._has_lines else (0, 0)
            place = self.places[number]
            totals[DispatchCount(entry or place.operator, keyset, tid, place.event, 0, *line)] += times
        if self._cells is not None:
            cpus = possible_cpus()
            data = self.kernel.values(self._cells, self._cell_count, cpus * CELL.size)
            for position, cell in enumerate(cell_counts(data)):
                if cell:
                    entry, keyset, times = cell
                    place = self.places[position // cpus]
                    totals[DispatchCount(entry or place.operator, keyset, tid=0, event=place.event, times=0)] += times
        return [count._replace(times=times) for count, times in totals.items()]


class DispatchActivity:
    """Counts calls by a probe on the function that every ``Dispatcher::call`` and ``callBoxed`` asks for step
    callbacks."""

    def __init__(self, session: Session) -> None:
        """Raises GdbextError where the function is not found, ProbesRefused where no BPF program can be loaded."""
        places = ProbePlaces(session)
        self._architecture, self._pid = session.memory.architecture, session.target.pid
        self._places = {places.path: [ProbePlace(places.cheap_place(STEP_CALLBACKS), 0)]}
        os.close(Bpf.of(self._architecture).program(bpf.assemble("return 0")))

    def start_count(self) -> CallCount:
        """Counts from now on. Raises ProbesRefused."""
        return CallCount(self._architecture, self._pid, self._places)

    def wait_for_dispatch(self, seconds: float) -> int:
        """Wait until dispatches were seen, at most that long; their number, 0 for none. Raises ProbesRefused,
        OSError."""
        reads = 20
        with self.start_count() as count:
            for _ in range(reads):
                time.sleep(seconds / reads)
                if total := count.total():
                    return total
        return 0


class CallCount(ProbeRun):
    """Counts how often a process passes these places, from construction to close(); a context manager."""

    def __init__(self, architecture: Architecture, pid: int, places: Mapping[str, Sequence[ProbePlace]]) -> None:
        """``places``: by file. Raises ProbesRefused."""
        super().__init__(architecture, pid)
        try:
            self._counter = self.own(self.kernel.memory(PER_CPU_ARRAY, 4, 8, 1))
            code = f"""
                [fp + -8] = 0
                {bpf.look_up(self._counter, -8)}
                if r0 == 0 goto end
                {bpf.ADD_ONE}
            end:
                return 0"""
            self.attach(self.own(self.kernel.program(bpf.assemble(code))), places)
        except BaseException:
            self.close()
            raise

    def total(self) -> int:
        """The number so far. Raises OSError."""
        return sum(count for _, count in self.kernel.totals(self._counter, 4))


def call_count(session: Session) -> CallCount | None:
    """Counts operator calls from now on; None where kernel probes are not permitted, or there is no process."""
    target = session.target
    if target.origin.is_core or target.origin.recorded or not session.has_torch:
        return None
    try:
        return DispatchActivity(session).start_count()
    except GdbextError:
        return None
