"""``dispatch-top --latency`` as text: a histogram for each operator and keyset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.model.report import Report
from gdbext.model.sections.latency_section import LatencyBucket, LatencyRow, LatencySection
from gdbext.render.text.style import Style, escape

_BAR = 40
"""Characters of the longest bar."""


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, then each row with its histogram."""
    found = report.section(LatencySection)
    count = sum(row.count for row in found.rows)
    yield style(f"{_calls(count)} returned in {found.seconds:.1f} s, {found.places} probes", "bold")
    if found.lost:
        reason = "too many combinations of operator and keyset"
        yield style(f"{_calls(found.lost)} more not counted: {reason}", "yellow")
    if not found.rows:
        yield "None of these operators was called: dispatch-top shows what is"
    for row in found.rows:
        yield from _row(row, style)
    if found.more:
        yield f"… and {found.more} more rows: --limit"


def _row(row: LatencyRow, style: Style) -> Iterator[str]:
    operator = f"{row.op}.{row.overload}" if row.overload else row.op or "?"
    yield ""
    yield style(escape(f"{operator}  [{row.event or '?'}]  {row.key or '?'}  {row.kernel or '?'}"), "bold")
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
    return "1 call" if count == 1 else f"{count} calls"


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
