"""``dispatch-top`` as text: a table, most dispatches first.

``dispatch-top --html``: the table as a page.

dispatch-top on a terminal: a screen that is drawn anew every interval, until q.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Report, TargetReport, render_text
from gdbext.engine.terminal import shown
from gdbext.render import Style, counted, escape, page, short_name
from gdbext.render.page import NO_ORIGIN, Column, Origin, Page, text
from gdbext.tools.probes.summary import TopRow, TopSection

if TYPE_CHECKING:
    from gdbext.tools.probes.summary import RowSelection

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
        yield nothing(top)
        return
    yield ""
    lines = [tuple(escape(cell) for cell in line) for line in table(top.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for number, line in enumerate(lines):
        text = "  ".join(_aligned(cell, width, column) for column, (cell, width) in enumerate(zip(line, widths)))
        yield style(text.rstrip(), "bold") if number == 0 else text.rstrip()
    if top.more:
        yield f"… and {counted(top.more, 'more row')}: --limit"
    if top.page:
        yield f"page: {escape(top.page)}"


def nothing(top: TopSection) -> str:
    """The line where no dispatch was seen: it says little where a program's own functions are not seen."""
    others = [each for each in top.unseen_in if " in libtorch" not in each]
    if not others:
        return NOTHING
    return f"No dispatch was seen. Not counted, for probes do not recognise them: {', '.join(others)}"


def headline(top: TopSection) -> str:
    """The headline: how much was dispatched, and in how long."""
    rate = top.total / top.seconds if top.seconds else 0.0
    unseen = f", {counted(top.unseen, 'function')} not seen ({', '.join(top.unseen_in)})" if top.unseen_in else ""
    probes = f"{counted(top.places, 'probe')}{unseen}"
    return f"{counted(top.total, 'dispatch')} in {top.seconds:.1f} s, {rate:.0f} a second, {probes}"


def lost(top: TopSection) -> str:
    """The line on what the rows do not have."""
    return f"{top.lost} more were not counted: too many combinations of operator, keyset and thread"


def table(rows: tuple[TopRow, ...]) -> list[tuple[str, ...]]:
    """Headings, then the rows, in the columns that this grouping has; as they are in the target."""
    shown = _columns(rows)
    return [_only(_NAMES, shown), *(_only(_cells(row), shown) for row in rows)]


def _columns(rows: tuple[TopRow, ...]) -> tuple[bool, ...]:
    """The columns of this grouping; one set for all rows, though some rows know less."""
    by_thread = any(row.tid for row in rows)
    subjects = [row.subject for row in rows]
    by_event = any(subject.event for subject in subjects)
    by_operator = any(subject.op for subject in subjects) or by_event
    by_key = by_operator or not by_thread
    by_line = any(row.line for row in rows)
    by_key = by_key and any(subject.key or subject.event for subject in subjects)
    by_kernel = by_operator and not by_line
    return True, True, by_event, by_operator, by_key, by_kernel, by_thread, by_line, by_operator


def _only(cells: tuple[str, ...], shown: tuple[bool, ...]) -> tuple[str, ...]:
    return tuple(cell for cell, wanted in zip(cells, shown) if wanted)


def _cells(row: TopRow) -> tuple[str, ...]:
    subject = row.subject
    thread = f"{row.thread} (tid {row.tid})" if row.thread else f"tid {row.tid}"
    return (
        str(row.count),
        f"{row.rate:.1f}",
        subject.event or "?",
        subject.qualified or "?",
        subject.key or "?",
        short_kernel(subject.kernel),
        thread,
        row.line or "(not from Python)",
        row.mark,
    )


def short_kernel(kernel: str | None) -> str:
    """The kernel as a table has it."""
    return "?" if kernel is None else short_name(kernel)


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column < 2 else cell.ljust(width)


_NUMBERS = ("count", "rate/s")


def render_page(top: TopSection, target: TargetReport | None, origin: Origin = NO_ORIGIN) -> str:
    """The page of a report as HTML."""
    of = f" of process {target.pid}" if target and target.pid else ""
    return Page(f"Dispatches{of}", (page.SCRIPT,)).whole(_body(top, of, origin))


def _body(top: TopSection, of: str, origin: Origin) -> Iterator[str]:
    yield f"<h1>Dispatches{of}</h1><p>{text(headline(top))}</p>"
    yield from page.facts(origin.facts)
    if top.lost:
        yield f'<p class="warning">{text(lost(top))}</p>'
    if not top.rows:
        yield f"<p>{text(NOTHING)}</p>"
        return
    heads, *rows = table(top.rows)
    columns = [Column(head or "odd", head in _NUMBERS) for head in heads]
    yield from page.table(columns, rows)
    if top.more:
        yield f'<p class="note">… and {counted(top.more, "more row")}: --limit</p>'


_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The other screen, without a cursor (xterm's control sequences; ECMA-48)."""
_HOME, _REST = "\x1b[H", "\x1b[K\n"
_ORDERS = {"c": "count", "o": "op", "k": "key", "n": "kernel", "t": "thread", "l": "line"}
_HELP = "q quit; sort by: c count, o operator, k key, n kernel, t thread, l line"
_LINES_AROUND = 5
"""Lines of the screen that are no rows: headline, headings, help."""

Measure = Callable[["RowSelection"], "Report"]


def is_possible() -> bool:
    """Both standard input and output are a terminal that knows control sequences."""
    return os.isatty(0) and os.isatty(1) and os.environ.get("TERM", "dumb") != "dumb"


class TopScreen:
    """The screen that shows what ``measure`` gives."""

    def __init__(self, measure: Measure, select_rows: RowSelection, interval: float) -> None:
        self._measure = measure
        self._select = select_rows
        self._interval = interval

    def run(self, stop: Callable[[], bool]) -> Report:
        """Run until q, or ``stop`` says so; the last report."""
        before = termios.tcgetattr(0)
        sys.stdout.write(_ENTER)
        try:
            tty.setcbreak(0)
            return self._draw(stop)
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()

    def _draw(self, stop: Callable[[], bool]) -> Report:
        self._wait(stop)
        while True:
            columns, lines = shutil.get_terminal_size()
            report = self._measure(self._select._replace(limit=max(1, lines - _LINES_AROUND)))
            text = [*shown(render_text(report)).splitlines()[: lines - 2], "", _HELP]
            screen = "".join(line[:columns] + _REST for line in text[:lines])
            sys.stdout.write(f"{_HOME}{screen.rstrip(chr(10))}\x1b[J")
            sys.stdout.flush()
            if not self._wait(stop):
                return report

    def _wait(self, stop: Callable[[], bool]) -> bool:
        """False when it is to end. A key for another order draws at once."""
        until = time.monotonic() + self._interval
        while not stop():
            left = until - time.monotonic()
            if left <= 0:
                return True
            if not select.select([0], [], [], min(left, 0.1))[0]:
                continue
            key = os.read(0, 1).decode(errors="replace")
            if key in ("q", ""):
                return False
            if key in _ORDERS:
                self._select = self._select._replace(sort=_ORDERS[key])
                return True
        return False
