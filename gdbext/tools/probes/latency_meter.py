"""dispatch-top --latency: how long calls took, as a section of a report.

How long the calls of operators took: ``dispatch-top --latency``.

Counts in the kernel how long the calls of operators take.

``dispatch-top --latency`` as text: a histogram for each operator and keyset.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from gdbext.diagnosis.report import Report
from gdbext.engine.arch import Architecture
from gdbext.engine.vocabulary import Section, counted
from gdbext.render import Style, escape
from gdbext.tools.probes.bpf import probe_programs
from gdbext.tools.probes.bpf.bpf_kernel import LRU_HASH, PER_CPU_HASH, Bpf, ProbePlace
from gdbext.tools.probes.bpf.place_program import EVERYTHING, Filter, TracePlace
from gdbext.tools.probes.bpf.probe_keeper import ProbeSet
from gdbext.tools.probes.dispatch_counter import DispatchCount
from gdbext.tools.probes.summary import Dispatched, DispatchSubject, Summary
from gdbext.tools.probes.trace_places import TracePlaces, return_places
from gdbext.torch.stack import DispatchEvent

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


class LatencyCount(NamedTuple):
    """``amount`` of a bucket (probe_programs.py) of the calls of an OperatorEntry with a keyset."""

    entry: int
    keyset: int
    event: DispatchEvent
    bucket: int
    amount: int


class LatencyCounter:
    """Measures from construction to close(); a context manager. Raises ProbesRefused, OSError."""

    def __init__(
        self,
        architecture: Architecture,
        pid: int,
        places: Sequence[TracePlace],
        returns: Mapping[str, Sequence[ProbePlace]],
        wanted: Collection[int],
        only: Filter = EVERYTHING,
    ) -> None:
        """``places``: of calls; ``returns``: where their functions return; ``wanted``: the OperatorEntries that
        filtered places measure."""
        self._places = places
        kernel = Bpf.of(architecture)
        self._probes = ProbeSet(kernel, architecture)
        try:
            open_calls = self._probes.own(
                kernel.memory(LRU_HASH, probe_programs.OPEN_KEY, probe_programs.OPEN_VALUE, _MAX_OPEN)
            )
            self._counts = kernel.map(PER_CPU_HASH, probe_programs.COUNT_KEY, _MAX_COUNTS)
            self._probes.own(self._counts.descriptor)
            maps = probe_programs.LatencyMaps(
                open_calls, self._counts.descriptor, self._probes.lost.descriptor, self._probes.wanted
            )
            self._probes.want(wanted)
            # The returns first: no call that was seen to begin is to be missed when it ends.
            self._probes.attach(pid, returns, probe_programs.exit_program(architecture, maps))
            self._probes.place(pid, places, lambda: probe_programs.entry_program(architecture, maps, only))
        except BaseException:
            self.close()
            raise
        self.started = time.monotonic()

    def counts(self) -> list[LatencyCount]:
        """The counts so far. Raises OSError."""
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


_SHARES = (0.5, 0.9, 0.99)


class LatencyMeter:
    """Measures from construction to close(); a context manager. Raises GdbextError."""

    def __init__(self, session: Session, operators: Sequence[Operator], only: Filter) -> None:
        self._summary = Summary(session)
        places = [place for place in TracePlaces(session).of(operators) if not place.event.is_redispatch]
        returns = return_places(session, places)
        self._placed = len(places) + sum(len(found) for found in returns.values())
        wanted = [operator.address for operator in operators]
        self._counter = LatencyCounter(session.memory.architecture, session.target.pid, places, returns, wanted, only)
        self._before: Counter[tuple[Dispatched, int]] = Counter()
        self._lost = 0
        self._since = self._counter.started

    def section(self, limit: int) -> LatencySection:
        """The calls that have returned since the last section, the most first. Raises OSError."""
        current: Counter[tuple[Dispatched, int]] = Counter()
        for count in self._counter.counts():
            current[self._summary.dispatched(_about(count))._replace(tid=None), count.bucket] += count.amount
        lost, now = self._counter.lost(), time.monotonic()
        kinds: dict[Dispatched, dict[int, int]] = {}
        for (what, bucket), amount in (current - self._before).items():
            kinds.setdefault(what, {})[bucket] = amount
        rows = [self._row(what, counts, _missing(current, what)) for what, counts in kinds.items()]
        rows.sort(key=lambda row: (-row.count, row.subject.op or "", row.subject.key or ""))
        section = LatencySection(
            seconds=round(now - self._since, 3),
            engine="probes",
            lost=lost - self._lost,
            places=self._placed,
            rows=tuple(rows[:limit]),
            more=max(0, len(rows) - limit),
        )
        self._before, self._lost, self._since = current, lost, now
        return section

    def learn(self) -> None:
        """Learn the names of the operators and keysets that were measured so far, while they can be read. Raises
        OSError."""
        self._summary.learn([_about(count) for count in self._counter.counts()])

    def _row(self, what: Dispatched, counts: dict[int, int], missing: int) -> LatencyRow:
        total = counts.pop(probe_programs.NANOSECONDS, 0)
        counts.pop(probe_programs.ENTERED, None)
        count = sum(counts.values())
        half, most, nearly_all = (_within(counts, share) for share in _SHARES)
        edges = ((*probe_programs.range_of(bucket), counts[bucket]) for bucket in sorted(counts))
        buckets = (LatencyBucket(low / 1e3, high / 1e3, amount) for low, high, amount in edges)
        return LatencyRow(
            self._summary.subject(what),
            count,
            missing,
            round(total / count / 1e3, 3) if count else None,
            half,
            most,
            nearly_all,
            tuple(buckets),
        )

    def __enter__(self) -> LatencyMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take all probes away; idempotent."""
        self._counter.close()


def _about(count: LatencyCount) -> DispatchCount:
    return DispatchCount(count.entry, count.keyset, 0, count.event, count.amount)


def _missing(current: Counter[tuple[Dispatched, int]], what: Dispatched) -> int:
    """Calls that began and did not return yet, since all probes were in place."""
    ends = sum(amount for (each, bucket), amount in current.items() if each == what and bucket < probe_programs.ENTERED)
    return max(0, current[what, probe_programs.ENTERED] - ends)


def _within(counts: dict[int, int], share: float) -> float | None:
    """Microseconds that so many of the calls took less than, to a quarter of a power of two."""
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
    found = report.section(LatencySection)
    count = sum(row.count for row in found.rows)
    yield style(f"{_calls(count)} returned in {found.seconds:.1f} s, {counted(found.places, 'probe')}", "bold")
    if found.lost:
        reason = "too many combinations of operator and keyset"
        yield style(f"{_calls(found.lost)} more not counted: {reason}", "yellow")
    if not found.rows:
        yield "None of these operators was called: dispatch-top shows what is"
    for row in found.rows:
        yield from _row(row, style)
    if found.more:
        yield f"… and {counted(found.more, 'more row')}: --limit"


def _row(row: LatencyRow, style: Style) -> Iterator[str]:
    subject = row.subject
    names = f"[{subject.event or '?'}]  {subject.key or '?'}  {subject.kernel or '?'}"
    yield ""
    yield style(escape(f"{subject.qualified or '?'}  {names}"), "bold")
    times = ((row.mean_us, "mean "), (row.p50_us, "half < "), (row.p90_us, "90 % < "), (row.p99_us, "99 % < "))
    shown = [f"{words}{_time(time)}" for time, words in times if time is not None]
    yield f"  {_calls(row.count)}: {', '.join(shown)}" if shown else "  no call returned"
    if row.not_returned:
        yield f"  {_calls(row.not_returned)} without a return: still inside, or left by an exception"
    buckets = powers(row.histogram)
    most = max((bucket.count for bucket in buckets), default=1)
    for bucket in buckets:
        edges = f"{_time(bucket.from_us):>10} – {_time(bucket.to_us):<10}"
        yield f"  {edges} {bucket.count:>9}  {'█' * round(_BAR * bucket.count / most)}".rstrip()


def _calls(count: int) -> str:
    return counted(count, "call")


def powers(buckets: Sequence[LatencyBucket]) -> list[LatencyBucket]:
    """One bucket for each power of two nanoseconds from the lowest to the highest."""
    counts: dict[int, int] = {}
    for bucket in buckets:
        power = max(1, round(bucket.from_us * 1e3)).bit_length() - 1
        counts[power] = counts.get(power, 0) + bucket.count
    between = range(min(counts), max(counts) + 1) if counts else ()
    return [LatencyBucket(2.0**each / 1e3, 2.0 ** (each + 1) / 1e3, counts.get(each, 0)) for each in between]


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3g} s"
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e3 else f"{microseconds:.3g} µs"
