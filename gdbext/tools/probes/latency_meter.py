"""``dispatch-top --latency``: measures how long the operator calls take, and shows a histogram for each."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Report
from gdbext.engine.vocabulary import Section, counted
from gdbext.render import Style, escape
from gdbext.tools.probes.bpf import probe_programs
from gdbext.tools.probes.bpf.bpf_kernel import LRU_HASH, PER_CPU_HASH
from gdbext.tools.probes.bpf.place_program import Filter
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
    """One operator with one keyset; None is not known. Times are microseconds from the lookup to the return."""

    subject: Inline[DispatchSubject]
    count: int
    """Number of calls that returned."""
    not_returned: int
    """Calls that are still inside, or were left by an exception, since the probes are there."""
    mean_us: float | None
    p50_us: float | None
    """Half of them took less: the upper edge of a bucket, as in the next two."""
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
    """Number of probes that were placed."""
    rows: tuple[LatencyRow, ...]
    more: int = 0
    """Rows that are left out."""


_MAX_OPEN = 1 << 14
"""Calls that are open at once; those that an exception left stay among them until others take their room."""
_MAX_COUNTS = 1 << 16
_KEY = struct.Struct("<QQQQ")
"""OperatorEntry, keyset, number of the place, bucket."""


class LatencyMeter(ProbeSet):
    """Measures from construction to close(); a context manager. Raises GdbextError, OSError."""

    def __init__(self, session: Session, operators: Sequence[Operator], only: Filter) -> None:
        architecture = session.memory.architecture
        super().__init__(architecture, session.target.pid)
        self._summary = Summary(session)
        kernel = self.kernel
        try:
            places = [place for place in TracePlaces(session).of(operators) if not place.event.is_redispatch]
            returns = return_places(session, places)
            self._placed = len(places) + sum(map(len, returns.values()))
            open_calls = self.own(
                kernel.memory(LRU_HASH, probe_programs.OPEN_KEY, probe_programs.OPEN_VALUE, _MAX_OPEN)
            )
            self._counts = self.own(kernel.memory(PER_CPU_HASH, _KEY.size, 8, _MAX_COUNTS))
            maps = probe_programs.LatencyMaps(open_calls, self._counts, self.lost_counter, self.wanted)
            self.want(operator.address for operator in operators)
            # The returns first: no call that was seen to begin is to be missed when it ends.
            self.attach(self.own(kernel.program(probe_programs.exit_program(architecture, maps))), returns)
            self.start(places, probe_programs.entry_program(architecture, maps, only))
        except BaseException:
            self.close()
            raise
        self._before: Counter[tuple[Dispatched, int]] = Counter()
        self._lost_before = 0
        self._since = time.monotonic()

    def _measured(self) -> Iterator[tuple[DispatchCount, int]]:
        """(count, bucket) of all calls so far; a bucket is one of probe_programs.py. Raises OSError."""
        for key, times in self.kernel.totals(self._counts, _KEY.size):
            entry, keyset, number, bucket = _KEY.unpack(key)
            place = self.places[number]
            yield DispatchCount(entry or place.operator, keyset, 0, place.event, times), bucket

    def section(self, limit: int) -> LatencySection:
        """The calls that have returned since the last section, the most first. Raises OSError."""
        current: Counter[tuple[Dispatched, int]] = Counter()
        for count, bucket in self._measured():
            current[self._summary.dispatched(count)._replace(tid=None), bucket] += count.times
        lost, now = self.lost(), time.monotonic()
        kinds: dict[Dispatched, dict[int, int]] = {}
        for (what, bucket), times in (current - self._before).items():
            kinds.setdefault(what, {})[bucket] = times
        rows = [self._row(what, counts, current) for what, counts in kinds.items()]
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
        """Learn the names of the operators and keysets that were measured so far, while they can be read. Raises
        OSError."""
        self._summary.learn([count for count, _ in self._measured()])

    def _row(self, what: Dispatched, counts: dict[int, int], current: Counter[tuple[Dispatched, int]]) -> LatencyRow:
        """``counts``: bucket → calls of this row; ``current``: those of all rows since the probes are there."""
        total = counts.pop(probe_programs.NANOSECONDS, 0)
        counts.pop(probe_programs.ENTERED, None)
        count = sum(counts.values())
        ended = sum(
            times for (other, bucket), times in current.items() if other == what and bucket < probe_programs.ENTERED
        )
        half, most, nearly_all = (_quantile(counts, share) for share in (0.5, 0.9, 0.99))
        edges = ((*probe_programs.range_of(bucket), counts[bucket]) for bucket in sorted(counts))
        return LatencyRow(
            self._summary.subject(what),
            count,
            max(0, current[what, probe_programs.ENTERED] - ended),
            round(total / count / 1e3, 3) if count else None,
            half,
            most,
            nearly_all,
            tuple(LatencyBucket(low / 1e3, high / 1e3, times) for low, high, times in edges),
        )


def _quantile(counts: dict[int, int], share: float) -> float | None:
    """Microseconds that this share of the calls took less than, to a quarter of a power of two. ``counts``: bucket →
    calls."""
    wanted = share * sum(counts.values())
    for bucket in sorted(counts):
        wanted -= counts[bucket]
        if wanted <= 0:
            return probe_programs.range_of(bucket)[1] / 1e3
    return None


_BAR = 40
"""Characters of the longest bar."""


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, then each row with its histogram."""
    section = report.section(LatencySection)
    calls = counted(sum(row.count for row in section.rows), "call")
    yield style(f"{calls} returned in {section.seconds:.1f} s, {counted(section.places, 'probe')}", "bold")
    if section.lost:
        reason = "too many combinations of operator and keyset"
        yield style(f"{counted(section.lost, 'call')} more not counted: {reason}", "yellow")
    if not section.rows:
        yield "None of these operators was called: dispatch-top shows what is"
    for row in section.rows:
        yield from _row(row, style)
    if section.more:
        yield f"… and {counted(section.more, 'more row')}: --limit"


def _row(row: LatencyRow, style: Style) -> Iterator[str]:
    subject = row.subject
    names = f"[{subject.event or '?'}]  {subject.key or '?'}  {subject.kernel or '?'}"
    yield ""
    yield style(escape(f"{subject.qualified or '?'}  {names}"), "bold")
    times = ((row.mean_us, "mean "), (row.p50_us, "half < "), (row.p90_us, "90 % < "), (row.p99_us, "99 % < "))
    shown = [f"{words}{_time(time)}" for time, words in times if time is not None]
    yield f"  {counted(row.count, 'call')}: {', '.join(shown)}" if shown else "  no call returned"
    if row.not_returned:
        yield f"  {counted(row.not_returned, 'call')} without a return: still inside, or left by an exception"
    buckets = powers(row.histogram)
    most = max((bucket.count for bucket in buckets), default=1)
    for bucket in buckets:
        edges = f"{_time(bucket.from_us):>10} – {_time(bucket.to_us):<10}"
        yield f"  {edges} {bucket.count:>9}  {'█' * round(_BAR * bucket.count / most)}".rstrip()


def powers(buckets: Sequence[LatencyBucket]) -> list[LatencyBucket]:
    """One bucket for each power of two nanoseconds from the lowest to the highest."""
    counts: Counter[int] = Counter()
    for bucket in buckets:
        counts[max(1, round(bucket.from_us * 1e3)).bit_length() - 1] += bucket.count
    exponents = range(min(counts), max(counts) + 1) if counts else ()
    return [LatencyBucket(2.0**each / 1e3, 2.0 ** (each + 1) / 1e3, counts[each]) for each in exponents]


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e3 else f"{microseconds:.3g} µs"
