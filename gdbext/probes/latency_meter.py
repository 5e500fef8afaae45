"""dispatch-top --latency: how long calls took, as a section of a report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.model.sections.latency_section import LatencyBucket, LatencyRow, LatencySection
from gdbext.probes.bpf.latency_program import ENTERED, NANOSECONDS, range_of
from gdbext.probes.bpf.place_program import Filter
from gdbext.probes.dispatch_counter import DispatchCount
from gdbext.probes.latency_counter import LatencyCount, LatencyCounter
from gdbext.probes.places.return_places import return_places
from gdbext.probes.places.trace_places import TracePlaces
from gdbext.probes.summary import Dispatched, Summary

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.registry.operators import Operator

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
        """What has returned since the last section, the most calls first. Raises OSError."""
        current: Counter[tuple[Dispatched, int]] = Counter()
        for count in self._counter.counts():
            current[self._summary.dispatched(_about(count))._replace(tid=None), count.bucket] += count.amount
        lost, now = self._counter.lost(), time.monotonic()
        kinds: dict[Dispatched, dict[int, int]] = {}
        for (what, bucket), amount in (current - self._before).items():
            kinds.setdefault(what, {})[bucket] = amount
        rows = [self._row(what, counts, _missing(current, what)) for what, counts in kinds.items()]
        rows.sort(key=lambda row: (-row.count, row.op or "", row.key or ""))
        section = LatencySection(
            seconds=round(now - self._since, 3), engine="probes", lost=lost - self._lost, places=self._placed,
            rows=tuple(rows[:limit]), more=max(0, len(rows) - limit),
        )  # fmt: skip
        self._before, self._lost, self._since = current, lost, now
        return section

    def learn(self) -> None:
        """What the operators and keysets are called that were measured so far, while it can be read. Raises OSError."""
        self._summary.learn([_about(count) for count in self._counter.counts()])

    def _row(self, what: Dispatched, counts: dict[int, int], missing: int) -> LatencyRow:
        named = self._summary.row(what, 0, 0.0, {})
        total = counts.pop(NANOSECONDS, 0)
        counts.pop(ENTERED, None)
        count = sum(counts.values())
        half, most, nearly_all = (_within(counts, share) for share in _SHARES)
        edges = ((*range_of(bucket), counts[bucket]) for bucket in sorted(counts))
        buckets = (LatencyBucket(low / 1e3, high / 1e3, amount) for low, high, amount in edges)
        return LatencyRow(
            named.op, named.overload, named.event, named.keyset, named.key, named.kernel, count, missing,
            round(total / count / 1e3, 3) if count else None, half, most, nearly_all, tuple(buckets),
        )  # fmt: skip

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
    ends = sum(amount for (each, bucket), amount in current.items() if each == what and bucket < ENTERED)
    return max(0, current[what, ENTERED] - ends)


def _within(counts: dict[int, int], share: float) -> float | None:
    """Microseconds that so many of the calls took less than, to a quarter of a power of two."""
    wanted = share * sum(counts.values())
    for bucket in sorted(counts):
        wanted -= counts[bucket]
        if wanted <= 0:
            return range_of(bucket)[1] / 1e3
    return None
