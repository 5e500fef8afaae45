"""``dispatch-top --latency``: measures how long operator calls take, and shows a histogram for each operator.

One BPF program runs at lookups, one at the ``ret`` instructions of their functions. A call is identified by its thread
and its slot, the stack address of its return address, which is the stack pointer at ``ret``. The kernel's own return
probes would replace the return address; a C++ exception thrown through such a frame kills the process.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gdbext.diagnosis.report import Report
from gdbext.engine.arch import Architecture
from gdbext.engine.vocabulary import Section, counted
from gdbext.render import Style, escape
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.bpf_kernel import LRU_HASH, PER_CPU_HASH
from gdbext.tools.probes.bpf.place_program import (
    MAX_PLACES,
    Filter,
    StackPlaces,
    load_dispatch,
    load_thread,
    return_address,
    saved_registers,
)
from gdbext.tools.probes.bpf.probe_keeper import ProbeSet
from gdbext.tools.probes.dispatch_counter import DispatchCount
from gdbext.tools.probes.summary import Dispatched, DispatchSubject, Summary
from gdbext.tools.probes.trace_places import TracePlaces, return_places

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.vocabulary import Inline
    from gdbext.torch.registry import Operator


@dataclass(frozen=True)
class LatencyBucket:
    """Calls that took at least ``from_us`` and less than ``to_us`` microseconds."""

    from_us: float
    to_us: float
    count: int


@dataclass(frozen=True)
class LatencyRow:
    """The calls of one operator with one keyset. Times are microseconds from the lookup to the return; None if no call
    returned."""

    subject: Inline[DispatchSubject]
    count: int
    """Number of calls that returned."""
    not_returned: int
    """Calls that have not returned, or were left by an exception, since the probes were placed."""
    mean_us: float | None
    p50_us: float | None
    """Half of the calls took less. It is the upper edge of a bucket, as are the next two."""
    p90_us: float | None
    p99_us: float | None
    histogram: tuple[LatencyBucket, ...]
    """Buckets with calls in them, ascending; each is a quarter of a power of two nanoseconds."""


@dataclass(frozen=True)
class LatencySection(Section):
    """The rows, most calls first."""

    name: ClassVar[str] = "latency"
    seconds: float
    engine: str
    lost: int
    """Calls that were seen and not counted."""
    places: int
    """Number of probes."""
    rows: tuple[LatencyRow, ...]
    more: int = 0
    """Number of rows that are left out."""


PARTS_BITS = 2
"""A power of two is divided into 1 << PARTS_BITS buckets."""
ENTERED, NANOSECONDS = 510, 511
"""Numbers of buckets that count something else: calls that began, the sum of all durations."""
_CALL_THREAD, _SLOT = -16, -8
_TIME, _CALL_ENTRY, _CALL_KEYSET, _CALL_PLACE, _BUCKET = -56, -48, -40, -32, -24
"""Stack offsets in the BPF programs: the key of an open call is at _CALL_THREAD, its value at _TIME; the key of a count
is at _CALL_ENTRY."""
_AMOUNT, _NO_KEY = -64, -72
_CALL_AT = StackPlaces(_CALL_ENTRY, _CALL_KEYSET, _CALL_THREAD)


class LatencyMaps(NamedTuple):
    """Fds of the maps that the programs use."""

    open: int
    """(thread, slot) → time of the lookup, OperatorEntry*, keyset, number of the place."""
    counts: int
    """(OperatorEntry*, keyset, number of the place, bucket) → calls."""
    lost: int
    wanted: int


def entry_program(architecture: Architecture, maps: LatencyMaps, only: Filter) -> bytes:
    """The BPF program at the lookup of a call: counts the call, and stores its time under thread and slot."""
    return bpf.assemble(f"""
        {load_dispatch(architecture, _CALL_AT, maps.wanted, only)}
        {return_address(architecture)}
        [fp + {_SLOT}] = r3
        r7 &= {MAX_PLACES - 1}
        [fp + {_CALL_PLACE}] = r7
        [fp + {_BUCKET}] = {ENTERED}
        [fp + {_AMOUNT}] = 1
        {bpf.add_to(maps.counts, _CALL_ENTRY, _AMOUNT, "call")}
        call ktime_get_ns()
        [fp + {_TIME}] = r0
        {bpf.put(maps.open, _CALL_THREAD, _TIME)}
        if r0 == 0 goto end
        {bpf.count_lost(maps.lost, _NO_KEY)}
    """)


def exit_program(architecture: Architecture, maps: LatencyMaps) -> bytes:
    """The BPF program at a ``ret``: counts the duration of the open call with this thread and slot, if there is one."""
    stack_pointer = saved_registers(architecture).get(architecture.stack_pointer, 0)
    return bpf.assemble(f"""
        r6 = r1
        call ktime_get_ns()
        r9 = r0
        {load_thread(_CALL_AT)}
        [fp + {_SLOT}] = [r6 + {stack_pointer}]
        {bpf.look_up(maps.open, _CALL_THREAD)}
        if r0 == 0 goto end
        r1 = [r0 + 0]
        r9 -= r1
        [fp + {_CALL_ENTRY}] = [r0 + {_CALL_ENTRY - _TIME}]
        [fp + {_CALL_KEYSET}] = [r0 + {_CALL_KEYSET - _TIME}]
        [fp + {_CALL_PLACE}] = [r0 + {_CALL_PLACE - _TIME}]
        call map_delete_elem(map {maps.open}, fp + {_CALL_THREAD})
        {_store_bucket()}
        [fp + {_AMOUNT}] = 1
        {bpf.add_to(maps.counts, _CALL_ENTRY, _AMOUNT, "bucket")}
        [fp + {_BUCKET}] = {NANOSECONDS}
        [fp + {_AMOUNT}] = r9
        {bpf.add_to(maps.counts, _CALL_ENTRY, _AMOUNT, "sum")}
        goto end
        {bpf.count_lost(maps.lost, _NO_KEY)}
    """)


def _store_bucket() -> str:
    """BPF code that stores the bucket of the duration in r9 at _BUCKET: its binary logarithm, which r2 gets by halving
    the word, and the PARTS_BITS bits below the highest one. range_of() is the inverse."""
    halvings = "".join(
        f"""
        r3 = r1 >> {step}
        if r3 == 0 goto below_{step}
        r1 = r3
        r2 += {step}
    below_{step}:"""
        for step in (32, 16, 8, 4, 2, 1)
    )
    return f"""
        r1 = r9
        r2 = 0
        {halvings}
        r1 = r9 << {PARTS_BITS}
        r1 >>= r2
        r1 &= {(1 << PARTS_BITS) - 1}
        r2 <<= {PARTS_BITS}
        r1 += r2
        [fp + {_BUCKET}] = r1"""


def range_of(bucket: int) -> tuple[float, float]:
    """The nanoseconds that a bucket counts: from the first up to, not including, the second."""
    power, part = divmod(bucket, 1 << PARTS_BITS)
    unit = 2.0**power / (1 << PARTS_BITS)
    return ((1 << PARTS_BITS) + part) * unit, ((1 << PARTS_BITS) + part + 1) * unit


_KEY = struct.Struct("<QQQQ")
"""OperatorEntry, keyset, number of the place, bucket."""


class LatencyMeter(ProbeSet):
    """Measures from construction to close(); a context manager. Raises GdbextError, OSError."""

    def __init__(self, session: Session, operators: Sequence[Operator], only: Filter) -> None:
        """``only``: the filter that the kernel applies."""
        architecture = session.memory.architecture
        super().__init__(architecture, session.target.pid)
        self._summary = Summary(session)
        kernel = self.kernel
        try:
            places = [place for place in TracePlaces(session).places_of(operators) if not place.event.is_redispatch]
            returns = return_places(session, places)
            self._placed = len(places) + sum(map(len, returns.values()))
            open_calls = self.own(kernel.memory(LRU_HASH, 16, 32, 1 << 14))  # evicts calls that an exception left
            self._counts = self.own(kernel.memory(PER_CPU_HASH, _KEY.size, 8, 1 << 16))
            maps = LatencyMaps(open_calls, self._counts, self.lost_counter, self.wanted)
            self.want(operator.address for operator in operators)
            # The returns first, so that no call is seen to begin and missed when it ends.
            self.attach(self.own(kernel.program(exit_program(architecture, maps))), returns)
            self.start(places, entry_program(architecture, maps, only))
        except BaseException:
            self.close()
            raise
        self._before: Counter[tuple[Dispatched, int]] = Counter()  # the counts at the last report
        self._lost_before = 0
        self._since = time.monotonic()

    def _bucket_counts(self) -> Iterator[tuple[DispatchCount, int]]:
        """(count, number of its bucket) of all calls since the probes were placed. Raises OSError."""
        for key, times in self.kernel.totals(self._counts, _KEY.size):
            entry, keyset, number, bucket = _KEY.unpack(key)
            place = self.places[number]
            yield DispatchCount(entry or place.operator, keyset, 0, place.event, times), bucket

    def section(self, limit: int) -> LatencySection:
        """The ``limit`` rows with the most calls since the last section. Raises OSError."""
        current: Counter[tuple[Dispatched, int]] = Counter()
        for count, bucket in self._bucket_counts():
            current[self._summary.dispatched(count)._replace(tid=None), bucket] += count.times
        lost, now = self.lost(), time.monotonic()
        buckets: dict[Dispatched, dict[int, int]] = {}
        for (dispatched, bucket), times in (current - self._before).items():
            buckets.setdefault(dispatched, {})[bucket] = times
        rows = [self._row(dispatched, counts, current) for dispatched, counts in buckets.items()]
        rows.sort(key=lambda row: (-row.count, row.subject.op or "", row.subject.key or ""))
        section = LatencySection(
            seconds=round(now - self._since, 3),
            engine="probes",
            lost=lost - self._lost_before,
            places=self._placed,
            rows=tuple(rows[:limit]),
            more=max(0, len(rows) - limit),
        )
        self._before, self._lost_before, self._since = current, lost, now
        return section

    def learn(self) -> None:
        """Read the names of the operators and keysets measured so far, while the process exists. Raises OSError."""
        self._summary.learn([count for count, _ in self._bucket_counts()])

    def _row(
        self, dispatched: Dispatched, counts: dict[int, int], current: Counter[tuple[Dispatched, int]]
    ) -> LatencyRow:
        """A row. ``counts``: bucket → its calls since the last section; ``current``: calls of all rows since the probes
        were placed."""
        total = counts.pop(NANOSECONDS, 0)
        counts.pop(ENTERED, None)
        count = sum(counts.values())
        ended = sum(times for (other, bucket), times in current.items() if other == dispatched and bucket < ENTERED)
        edges = ((*range_of(bucket), counts[bucket]) for bucket in sorted(counts))
        return LatencyRow(
            self._summary.subject(dispatched),
            count,
            max(0, current[dispatched, ENTERED] - ended),
            round(total / count / 1e3, 3) if count else None,
            _quantile(counts, 0.5),
            _quantile(counts, 0.9),
            _quantile(counts, 0.99),
            tuple(LatencyBucket(low / 1e3, high / 1e3, times) for low, high, times in edges),
        )


def _quantile(counts: dict[int, int], share: float) -> float | None:
    """Microseconds than which this share (0 to 1) of the calls took less: the upper edge of a bucket; None without
    calls. ``counts``: bucket → calls."""
    calls_left = share * sum(counts.values())
    for bucket in sorted(counts):
        calls_left -= counts[bucket]
        if calls_left <= 0:
            return range_of(bucket)[1] / 1e3
    return None


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, then each row with its histogram."""
    section = report.section(LatencySection)
    calls = counted(sum(row.count for row in section.rows), "call")
    yield style(f"{calls} returned in {section.seconds:.1f} s, {counted(section.places, 'probe')}", "bold")
    if section.lost:
        reason = "too many combinations of operator and keyset"
        yield style(f"{counted(section.lost, 'more call')} not counted: {reason}", "yellow")
    if not section.rows:
        yield "None of these operators was called; dispatch-top shows which operators are"
    for row in section.rows:
        yield from _row_lines(row, style)
    if section.more:
        yield f"… and {counted(section.more, 'more row')}: --limit"


def _row_lines(row: LatencyRow, style: Style) -> Iterator[str]:
    """A row: names, quantiles, and a bar for each power of two nanoseconds."""
    subject = row.subject
    names = f"[{subject.event or '?'}]  {subject.key or '?'}  {subject.kernel or '?'}"
    yield ""
    yield style(escape(f"{subject.qualified or '?'}  {names}"), "bold")
    times = ((row.mean_us, "mean "), (row.p50_us, "half < "), (row.p90_us, "90 % < "), (row.p99_us, "99 % < "))
    shown = [f"{words}{_duration_text(time)}" for time, words in times if time is not None]
    yield f"  {counted(row.count, 'call')}: {', '.join(shown)}" if shown else "  no call returned"
    if row.not_returned:
        yield f"  {counted(row.not_returned, 'call')} did not return: still running, or exited by an exception"
    buckets = powers(row.histogram)
    most = max((bucket.count for bucket in buckets), default=1)
    for bucket in buckets:
        edges = f"{_duration_text(bucket.from_us):>10} – {_duration_text(bucket.to_us):<10}"
        yield f"  {edges} {bucket.count:>9}  {'█' * round(40 * bucket.count / most)}".rstrip()


def powers(buckets: Sequence[LatencyBucket]) -> list[LatencyBucket]:
    """The calls of ``buckets`` in wider ones: one for each power of two nanoseconds from the lowest to the highest."""
    counts: Counter[int] = Counter()
    for bucket in buckets:
        counts[max(1, round(bucket.from_us * 1e3)).bit_length() - 1] += bucket.count
    exponents = range(min(counts), max(counts) + 1) if counts else ()
    return [LatencyBucket(2.0**power / 1e3, 2.0 ** (power + 1) / 1e3, counts[power]) for power in exponents]


def _duration_text(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e3 else f"{microseconds:.3g} µs"
