"""``dispatch-top`` as text: a table, most dispatches first."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.report import Report
from gdbext.model.sections.top_section import TopRow, TopSection
from gdbext.render.text.style import Style, escape

_NAMES = ("count", "rate/s", "event", "operator", "key", "kernel", "thread", "line", "")
"""Headings; the last column marks what is odd."""


NOTHING = "Nothing was dispatched: is it hung? dispatch-diagnose"


def render(report: Report, style: Style) -> Iterator[str]:
    """A headline, then the rows."""
    top = report.section(TopSection)
    yield style(headline(top), "bold")
    if top.lost:
        yield style(lost(top), "yellow")
    if not top.rows:
        yield NOTHING
        return
    yield ""
    lines = [tuple(escape(cell) for cell in line) for line in table(top.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for number, line in enumerate(lines):
        text = "  ".join(_aligned(cell, width, column) for column, (cell, width) in enumerate(zip(line, widths)))
        yield style(text.rstrip(), "bold") if number == 0 else text.rstrip()
    if top.more:
        yield f"… and {top.more} more rows: --limit"
    if top.page:
        yield f"page: {escape(top.page)}"


def headline(top: TopSection) -> str:
    """How much, in how long."""
    rate = top.total / top.seconds if top.seconds else 0.0
    probes = f"{top.places} probes" + (f", {top.unseen} functions not seen" if top.unseen else "")
    return f"{top.total} dispatches in {top.seconds:.1f} s, {rate:.0f} a second, {probes}"


def lost(top: TopSection) -> str:
    """What the rows do not have."""
    return f"{top.lost} more were not counted: too many combinations of operator, keyset and thread"


def table(rows: tuple[TopRow, ...]) -> list[tuple[str, ...]]:
    """Headings, then the rows, in the columns that this grouping has; as they are in the target."""
    shown = _columns(rows)
    return [_only(_NAMES, shown), *(_only(_cells(row), shown) for row in rows)]


def _columns(rows: tuple[TopRow, ...]) -> tuple[bool, ...]:
    """Which columns this grouping has; one set for all rows, though some rows know less."""
    by_thread = any(row.tid is not None for row in rows)
    by_event = any(row.event is not None for row in rows)
    by_operator = any(row.op is not None for row in rows) or by_event
    by_key = by_operator or not by_thread
    by_line = any(row.line is not None for row in rows)
    by_key = by_key and any(row.key is not None or row.event is not None for row in rows)
    by_kernel = by_operator and not by_line
    return True, True, by_event, by_operator, by_key, by_kernel, by_thread, by_line, by_operator


def _only(cells: tuple[str, ...], shown: tuple[bool, ...]) -> tuple[str, ...]:
    return tuple(cell for cell, wanted in zip(cells, shown) if wanted)


def _cells(row: TopRow) -> tuple[str, ...]:
    operator = f"{row.op}.{row.overload}" if row.overload else row.op or "?"
    thread = f"{row.thread} (tid {row.tid})" if row.thread else f"tid {row.tid}"
    return (
        str(row.count), f"{row.rate:.1f}", row.event or "?", operator, row.key or "?", row.kernel or "?", thread,
        row.line or "(not from Python)", row.mark,
    )  # fmt: skip


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column < 2 else cell.ljust(width)
