"""Counts dispatches in the kernel: by place, operator and keyset, on request also by thread or line.

Which dispatches are counted or traced is said by thread and by key, as the user names them. DispatchActivity is the
least of it: one probe that tells whether a process dispatches at all, and how much.
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.targets.system.linux import signals_held
from gdbext.errors import GdbextError
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.bpf_kernel import HASH, PER_CPU_ARRAY, PER_CPU_HASH, Bpf, ProbePlace, possible_processors
from gdbext.tools.probes.bpf.place_program import EVERYTHING, MAX_PLACES, Filter, FramePath, TracePlace
from gdbext.tools.probes.bpf.probe_keeper import INTERRUPTS, ProbeKeeper, ProbeSet
from gdbext.tools.probes.bpf.probe_programs import CELL, KEY, LINE, CounterMaps, cell_counts, program
from gdbext.tools.probes.site_scan import ProbePlaces
from gdbext.torch.assumed_symbols import STEP_CALLBACKS
from gdbext.torch.stack import DispatchEvent

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session


def filter_of(session: Session, tid: int | None, key: str) -> Filter:
    """The filter of a thread, and of a key's name; None and "" for all. Raises UsageError."""
    return Filter(tid, session.dispatcher.keys.selecting(key) if key else ())


MAX_KEYS = 1 << 16
"""Combinations that are counted; a busy job has a few thousand."""
_MAX_THREADS = 1 << 14


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


class _Counted(NamedTuple):
    """``number`` of the place; ``entry`` and ``tid`` may be 0: the place's own, not known."""

    number: int
    entry: int
    keyset: int
    tid: int
    times: int
    line: tuple[int, ...] = (0, 0)


class DispatchCounter:
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
        self._places = [*places[:MAX_PLACES]]
        self._pid = pid
        self._with_cells = len(self._places)
        self._path = path
        self._only = only
        kernel = Bpf.of(architecture)
        self._probes = ProbeSet(kernel, architecture)
        try:
            size = KEY.size + (LINE.size if path else 0)
            self._counts = kernel.map(PER_CPU_HASH, size, MAX_KEYS)
            self._probes.own(self._counts.descriptor)
            self._cells = None if by_thread or path else self._make_cells(kernel)
            self._states = self._probes.own(kernel.memory(HASH, 8, 8, _MAX_THREADS))
            self._probes.want(wanted)
            self.know_threads(states or {})
            self._probes.place(pid, self._places, lambda: self._program(architecture))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic()

    def _make_cells(self, kernel: Bpf) -> int:
        return self._probes.own(kernel.memory(PER_CPU_ARRAY, 4, CELL.size, max(1, self._with_cells)))

    def _program(self, architecture: Architecture) -> bytes:
        probes = self._probes
        maps = CounterMaps(self._counts.descriptor, probes.lost.descriptor, probes.wanted, self._states, self._cells)
        return program(architecture, maps, self._path, self._only)

    def add(self, places: Sequence[TracePlace]) -> None:
        """Count at these, too, from now on. Raises ProbesRefused."""
        first = len(self._places)
        self._places += places[: MAX_PLACES - first]
        self._probes.add(self._pid, self._places[first:], first)

    def know_threads(self, states: Mapping[int, int]) -> None:
        """Thread id → PyThreadState, for the lines. Raises OSError."""
        for tid, state in states.items():
            self._probes.kernel.put(self._states, struct.pack("<Q", tid), struct.pack("<Q", state))

    def __enter__(self) -> DispatchCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def counts(self) -> list[DispatchCount]:
        """The counts so far. Raises OSError."""
        found: Counter[DispatchCount] = Counter()
        for each in (*self._in_map(), *self._in_cells()):
            place = self._places[each.number]
            what = DispatchCount(each.entry or place.operator, each.keyset, each.tid, place.event, 0, *each.line)
            found[what] += each.times
        return [what._replace(times=times) for what, times in found.items()]

    def _in_map(self) -> Iterator[_Counted]:
        for key, count in self._counts.totals():
            line = LINE.unpack_from(key, KEY.size) if self._path else (0, 0)
            number, entry, keyset, tid = KEY.unpack_from(key)
            yield _Counted(number, entry, keyset, tid, count, line)

    def _in_cells(self) -> Iterator[_Counted]:
        if self._cells is None:
            return
        processors = possible_processors()
        data = self._probes.kernel.values(self._cells, self._with_cells, processors * CELL.size)
        for at, cell in enumerate(cell_counts(data)):
            if cell:
                entry, keyset, count = cell
                yield _Counted(at // processors, entry, keyset, 0, count)

    def lost(self) -> int:
        """Dispatches that were seen and not counted, since there were too many combinations. Raises OSError."""
        return self._probes.total_lost()

    def close(self) -> None:
        """Take all probes away; idempotent."""
        self._probes.close()


_LOOKS = 20
"""Times that the counter is read while a dispatch is waited for."""


class DispatchActivity:
    """The probe is on what every ``Dispatcher::call`` and ``callBoxed`` asks for step callbacks."""

    def __init__(self, session: Session) -> None:
        """Raises GdbextError where the place is not found, ProbesRefused where no BPF program can be loaded."""
        places = ProbePlaces(session)
        self._architecture, self._pid = session.memory.architecture, session.target.pid
        self._path = places.path
        self._offset = places.cheap_place(STEP_CALLBACKS)
        os.close(Bpf.of(self._architecture).program(bpf.end()))

    def counting(self) -> CallCount:
        """Counts from now on. Raises ProbesRefused."""
        return CallCount(self._architecture, self._path, ProbePlace(self._offset, 0), self._pid)

    def seen(self, seconds: float) -> int:
        """Number of dispatches until some were seen, 0 where there was none within that time. Raises ProbesRefused,
        OSError."""
        with self.counting() as count:
            for _ in range(_LOOKS):
                time.sleep(seconds / _LOOKS)
                if found := count.total():
                    return found
        return 0


class CallCount:
    """The number of calls of operators since it was made; a context manager."""

    def __init__(self, architecture: Architecture, path: str, place: ProbePlace, pid: int) -> None:
        """Place the probe. Raises ProbesRefused."""
        kernel = Bpf.of(architecture)
        self._counter = kernel.map(PER_CPU_ARRAY, 4, 1)
        self._descriptors = [self._counter.descriptor]
        self._keeper: ProbeKeeper | None = None
        try:
            program = kernel.program(_program(self._counter.descriptor))
            self._descriptors.append(program)
            with signals_held(INTERRUPTS):
                self._keeper = ProbeKeeper(kernel, architecture, program, pid, {path: [place]})
        except BaseException:
            self.close()
            raise

    def total(self) -> int:
        """The number so far. Raises OSError."""
        return sum(count for _, count in self._counter.totals())

    def close(self) -> None:
        """Take the probe away; idempotent."""
        if self._keeper:
            self._keeper.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __enter__(self) -> CallCount:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def call_count(session: Session) -> CallCount | None:
    """Counts the calls of operators from now on; None where kernel probes are not permitted, or there is no process."""
    target = session.target
    if target.origin.is_core or target.origin.recorded or not session.has_torch:
        return None
    try:
        return DispatchActivity(session).counting()
    except GdbextError:
        return None


def _program(counter: int) -> bpf.Code:
    return bpf.assemble(
        (
            bpf.store_constant(bpf.FRAME, -8, 0),
            *bpf.look_up(counter, -8),
            bpf.jump_if_equal("end", bpf.B0, 0),
            bpf.load(bpf.B1, bpf.B0, 0),
            bpf.increase(bpf.B1, 1),
            bpf.store(bpf.B0, 0, bpf.B1),
            bpf.Label("end"),
            bpf.end(),
        )
    )
