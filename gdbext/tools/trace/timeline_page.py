"""``dispatch-trace --output FILE.html``: a timeline of all threads, and where the time went, by operator.

The page is written while the trace runs. A dispatch is seven numbers: which kind of dispatch, thread, start, duration,
level, and start and duration of its kernel, -1 where that was not seen. Times are microseconds.

The dispatches of a trace, a thread's outermost one with all that is inside of it at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gdbext.engine.record import Record
from gdbext.hosts.resume.dispatch_description import LookupResult, TracedDispatch
from gdbext.render import page
from gdbext.render.page import DATA_ENDS, Column, Page, data_begins, embedded
from gdbext.render.style import escape


class ThreadBatches:
    """Keeps dispatches until the outermost one of their thread has ended; then ``put`` gets them, in order of entry."""

    def __init__(self, put: Callable[[Sequence[TracedDispatch]], None]) -> None:
        self._put = put
        self._pending: dict[int, list[TracedDispatch]] = {}

    def add(self, dispatch: TracedDispatch) -> None:
        """Note that a dispatch begins."""
        self._pending.setdefault(dispatch.tid, []).append(dispatch)

    def ended(self, dispatch: TracedDispatch) -> None:
        """A dispatch is over. Raises what ``put`` does."""
        pending = self._pending.get(dispatch.tid)
        if pending and pending[0] is dispatch:
            self._put(self._pending.pop(dispatch.tid))

    def close(self) -> None:
        """End what is still open with the trace. Raises what ``put`` does."""
        for tid in list(self._pending):
            self._put(self._pending.pop(tid))


_COLUMNS = (
    Column("count", True), Column("self µs", True), Column("total µs", True), Column("mean µs", True),
    Column("longest µs", True), Column("event"), Column("operator"), Column("key"), Column("kernel"),
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
not inside of it: what comes last before a pause has the pause, too. Self: without the dispatches inside of it.</p>"""


class TimelinePage:
    """Writes the page piece by piece; ``now`` gives the time of the trace's end."""

    def __init__(self, write: Callable[[bytes], None], pid: int, now: Callable[[], float]) -> None:
        self._write = write
        self._pid = pid
        self._now = now
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
        now = self._now()
        numbers = [self._number(dispatch.found) for dispatch in dispatches]
        for dispatch, own in own_times(dispatches, now):
            self._costs[self._number(dispatch.found)].add(_duration(dispatch, now), own)
        rows = (_row(number, dispatch, now) for number, dispatch in zip(numbers, dispatches))
        self._text("".join(f",{each}" for each in rows))

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
        self.count, self.total, self.own, self.longest = 0, 0.0, 0.0, 0.0

    def add(self, duration: float, own: float) -> None:
        """Add one more dispatch to the cost."""
        self.count += 1
        self.total += duration
        self.own += own
        self.longest = max(self.longest, duration)

    def cells(self, found: LookupResult) -> tuple[str, ...]:
        """The row of the table."""
        mean = self.total / self.count if self.count else 0.0
        times = (f"{time:.1f}" for time in (self.own, self.total, mean, self.longest))
        return str(self.count), *times, found.event, found.qualified, found.key, found.kernel or found.kind


class _OpenDispatch(Record):
    dispatch: TracedDispatch
    inside: list[float]


def own_times(dispatches: Sequence[TracedDispatch], now: float) -> Iterator[tuple[TracedDispatch, float]]:
    """Each dispatch of one thread, and how long it took without those directly inside of it. ``dispatches`` are in
    order of entry."""
    open_now: list[_OpenDispatch] = []
    for dispatch in dispatches:
        while open_now and open_now[-1].dispatch.depth >= dispatch.depth:
            yield _closed(open_now.pop(), now)
        if open_now:
            open_now[-1].inside.append(_duration(dispatch, now))
        open_now.append(_OpenDispatch(dispatch, []))
    yield from (_closed(each, now) for each in reversed(open_now))


def _closed(each: _OpenDispatch, now: float) -> tuple[TracedDispatch, float]:
    return each.dispatch, max(0.0, _duration(each.dispatch, now) - sum(each.inside))


def _duration(dispatch: TracedDispatch, now: float) -> float:
    return max(0.0, (now if dispatch.ended is None else dispatch.ended) - dispatch.started)


def _row(number: int, dispatch: TracedDispatch, now: float) -> str:
    kernel, took = dispatch.kernel_started, -1.0
    if kernel is not None:
        ended = now if dispatch.ended is None else dispatch.ended
        took = max(0.0, (ended if dispatch.kernel_ended is None else dispatch.kernel_ended) - kernel)
    times = f"{dispatch.started:.1f},{_duration(dispatch, now):.1f},{dispatch.depth}"
    return f"{number},{dispatch.tid},{times},{-1 if kernel is None else f'{kernel:.1f}'},{took:.1f}"


def _kind(found: LookupResult) -> list[str]:
    """Event, operator, key, keys, kernel, where it was registered."""
    texts = (found.event, found.qualified, found.key, ", ".join(found.keys), found.kernel or found.kind)
    return [escape(each) for each in (*texts, found.registered_at)]
