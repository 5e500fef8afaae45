"""``dispatch-trace --output FILE.html``: a timeline of all threads, and where the time went, by operator.

The page is written while the trace runs. A dispatch is eight numbers: which kind of dispatch, thread, start, duration,
level, start and duration of its kernel, -1 where that was not seen, and, where its end was not seen, how long it may
have lasted at most, else 0. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gdbext.hosts.resume.dispatch_description import LookupResult, TracedDispatch
from gdbext.render import page
from gdbext.render.page import DATA_ENDS, Column, Page, data_begins, embedded
from gdbext.render.style import escape
from gdbext.tools.trace.trace_bars import Bar, ThreadBars, ThreadBatches

_COLUMNS = (
    Column("count", True), Column("end not seen", True), Column("self µs", True), Column("total µs", True),
    Column("mean µs", True), Column("longest µs", True), Column("event"), Column("operator"), Column("key"),
    Column("kernel"),
)  # fmt: skip
_BODY = """\
<noscript><p class="warning">The timeline is drawn by a script of this page; the table below needs none.</p></noscript>
<div class="tools"><input type="search" id="search" placeholder="search: operator, key, kernel"><span id="found" \
class="note"></span><button id="whole">show all</button></div>
<canvas class="timeline" id="timeline"></canvas><div class="tip" id="tip" hidden></div>
<p class="note">Wheel: zoom; drag: move; double click: zoom to a dispatch; Enter in the search: the next one found.
Keys: + − ← →. The page's address is a link to what is shown.</p>
<dl class="facts" id="chosen"></dl>
"""
_TIMES = """\
<p class="note">A dispatch lasts until its return, where that was seen, or until its thread makes the next one that is
not inside of it: what comes last before a pause has the pause, too. Self: without the dispatches inside of it. The end
of the last one inside of another is not seen then, nor that of one that is still open: such a bar is pale from the last
thing that is known of it, and in none of these sums; the time after it is that of the one around it.</p>"""


class TimelinePage:
    """Writes the page piece by piece; ``now`` gives the time of the trace's end."""

    def __init__(self, write: Callable[[bytes], None], pid: int, now: Callable[[], float]) -> None:
        self._write = write
        self._pid = pid
        self._bars = ThreadBars(now)
        self._page = Page(f"Trace of process {pid}", ("timeline", page.SCRIPT))
        self._batches = ThreadBatches(self._put)
        self._kinds: dict[int, tuple[int, LookupResult]] = {}
        self._costs: list[_Cost] = []
        self._count = 0

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """An event begins at its lookup."""

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """Kept until the thread's outermost dispatch has ended."""
        self._begin()
        self._batches.add(dispatch)

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """The kernel's times are kept in the dispatch."""

    def ended(self, dispatch: TracedDispatch) -> None:
        """Write the events that are complete."""
        self._batches.ended(dispatch)

    def close(self) -> None:
        """Write the rest; what is still open ends with the trace."""
        self._begin()
        self._batches.close()
        kinds = [_kind(found) for _, found in self._kinds.values()]
        rows = (cost.cells(found) for cost, (_, found) in self._in_order())
        body = "\n".join(("<h2>Where the time went</h2>", _TIMES, *page.table(_COLUMNS, rows)))
        self._text(f"]{DATA_ENDS}{embedded('kinds', kinds)}{body}\n{self._page.end()}")

    def _in_order(self) -> list[tuple[_Cost, tuple[int, LookupResult]]]:
        """The costs in order: what took most itself comes first."""
        return sorted(zip(self._costs, self._kinds.values()), key=lambda each: -each[0].own)

    def _begin(self) -> None:
        if not self._count:
            self._count = 1
            head = f"{self._page.head()}<h1>Trace of process {self._pid}</h1>\n{_BODY}"
            self._text(f"{head}{data_begins('dispatches')}[0")

    def _put(self, dispatches: Sequence[TracedDispatch]) -> None:
        for bar in self._bars.of(dispatches):
            number = self._number(bar.dispatch.found)
            self._costs[number].add(bar)
            self._text(f",{_row(number, bar)}")

    def _number(self, found: LookupResult) -> int:
        # The LookupResult is kept along, so that its id stays its own.
        known = self._kinds.get(id(found))
        if known is None:
            known = self._kinds[id(found)] = (len(self._kinds), found)
            self._costs.append(_Cost())
        return known[0]

    def _text(self, text: str) -> None:
        self._write(text.encode())


class _Cost:
    """The cost of all dispatches of one kind; ``own`` without what was inside of them."""

    def __init__(self) -> None:
        self.count, self.total, self.own, self.longest, self.unseen = 0, 0, 0, 0, 0

    def add(self, bar: Bar) -> None:
        """Add one more dispatch to the cost; one whose end was not seen is only counted."""
        self.count += 1
        if not bar.is_end_seen:
            self.unseen += 1
            return
        self.total += bar.lasted
        self.own += bar.own
        self.longest = max(self.longest, bar.lasted)

    def cells(self, found: LookupResult) -> tuple[str, ...]:
        """The row of the table."""
        seen = self.count - self.unseen
        mean = self.total / seen if seen else 0.0
        times = (f"{time / 1e3:.1f}" if seen else "" for time in (self.own, self.total, mean, self.longest))
        return (
            str(self.count),
            str(self.unseen or ""),
            *times,
            found.event,
            found.qualified,
            found.key,
            found.kernel or found.kind,
        )


def _row(number: int, bar: Bar) -> str:
    kernel, took = (-1.0, -1.0) if bar.kernel is None else (bar.kernel[0] / 1e3, (bar.kernel[1] - bar.kernel[0]) / 1e3)
    times = f"{bar.start / 1e3:.3f},{bar.lasted / 1e3:.3f},{bar.dispatch.depth}"
    unseen = 0.0 if bar.is_end_seen else (bar.until - bar.start) / 1e3
    return f"{number},{bar.dispatch.tid},{times},{kernel:.3f},{took:.3f},{unseen:.3f}"


def _kind(found: LookupResult) -> list[str]:
    """Event, operator, key, keys, kernel, where it was registered."""
    texts = (found.event, found.qualified, found.key, ", ".join(found.keys), found.kernel or found.kind)
    return [escape(each) for each in (*texts, found.registered_at)]
