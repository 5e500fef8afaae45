"""A trace in Chrome's format (chrome://tracing, Perfetto): complete events, times in microseconds.

Format: "Trace Event Format" (the Chromium project's document), phase "X", and "M" for the names of process and
threads. A thread's events are written when its outermost dispatch has ended, in order of entry. They never cross:
trace_bars.py. Perfetto makes nanoseconds of the times and drops what is behind the point (CoerceToTs,
src/trace_processor/importers/json/json_utils.cc), so each number is one that gives the nanosecond that is meant.

The events of a trace as JSON: for a document, or one object a line.

``dispatch-trace --output FILE.html``: a timeline of all threads, and where the time went, by operator.

The page is written while the trace runs. A dispatch is eight numbers: which kind of dispatch, thread, start, duration,
level, start and duration of its kernel, -1 where that was not seen, and, where its end was not seen, how long it may
have lasted at most, else 0. Times are microseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gdbext.engine.terminal import shown_json
from gdbext.engine.vocabulary import json_member
from gdbext.live.dispatch_description import LookupResult, TracedDispatch
from gdbext.render import escape, page
from gdbext.render.page import DATA_ENDS, NO_ORIGIN, Column, Origin, Page, data_begins, embedded
from gdbext.render.plain_json import plain
from gdbext.tools.trace.trace_bars import Bar, ThreadBars, ThreadBatches
from gdbext.torch.stack import DispatchEvent, DispatchKeySet

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Amount, Count, Sparse


class EntryStep(NamedTuple):
    """The operator's function is entered, its keyset not known yet."""

    tid: Count
    depth: Count
    event: DispatchEvent
    op: str

    @json_member(after="")
    def step(self) -> Literal["entry"]:
        """The word of such a line."""
        return "entry"


class EndStep(NamedTuple):
    """The dispatch of that number has ended."""

    tid: Count
    number: Count
    returned: bool

    @json_member(after="")
    def step(self) -> Literal["end"]:
        """The word of such a line."""
        return "end"


class InnerStep(NamedTuple):
    """A step of the dispatch of that number."""

    step: str
    tid: Count
    number: Count
    text: str


class JsonTrace:
    """Every dispatch, step and end as it happens, as an object."""

    def __init__(self, put: Callable[[dict[str, Any]], None]) -> None:
        self._put = put

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """The line of an entry: ``{"step": "entry"}``."""
        self._put(plain(EntryStep(tid, depth, DispatchEvent(event), name)))

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """``{"step": "dispatch"}`` with everything that is known."""
        self._put(plain(dispatch))

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """A step of a dispatch, which ``number`` names."""
        self._put(plain(InnerStep(word, dispatch.tid, dispatch.number, text)))

    def ended(self, dispatch: TracedDispatch) -> None:
        """The line of an end: ``{"step": "end"}``."""
        self._put(plain(EndStep(dispatch.tid, dispatch.number, dispatch.returned)))

    def close(self) -> None:
        """Close; nothing was kept back."""


def json_lines(write: Callable[[bytes], None]) -> Callable[[dict[str, Any]], None]:
    """A writer of objects, a line each, at once, so that the last one before a hang is there."""
    return lambda document: write(shown_json(json.dumps(document)).encode() + b"\n")


class NameArguments(NamedTuple):
    """The name of a process or thread."""

    name: str


class NameEvent(NamedTuple):
    """The name of the process or of a thread."""

    pid: Count
    tid: Count
    name: Literal["process_name", "thread_name"]
    args: NameArguments

    @json_member(after="")
    def ph(self) -> Literal["M"]:
        """The phase of the format."""
        return "M"


class CompleteArguments(NamedTuple):
    """A dispatch, or its kernel, as a viewer shows it."""

    overload: str
    keyset: DispatchKeySet
    key: str
    table_index: Count
    kernel: str | None
    boxed: bool
    returned: bool
    end: Sparse[Literal["not seen"] | None] = None
    """``dur`` is as far as it is known to have lasted."""
    at_most_us: Sparse[Amount | None] = None
    """With ``end``: it has not lasted longer."""


class CompleteEvent(NamedTuple):
    """A dispatch, or its kernel. Times are microseconds."""

    ts: float
    dur: Amount
    pid: Count
    tid: Count
    name: str
    cat: DispatchEvent | Literal["kernel"]
    args: CompleteArguments

    @json_member(after="")
    def ph(self) -> Literal["X"]:
        """The phase of the format."""
        return "X"


class ChromeTrace:
    """Writes ``{"traceEvents": […]}`` piece by piece; ``now`` gives the time of the trace's end."""

    def __init__(
        self, write: Callable[[bytes], None], pid: int, now: Callable[[], float], names: Callable[[int], str] = str
    ) -> None:
        """``names`` gives the name of a thread by its id."""
        self._write = write
        self._pid = pid
        self._bars = ThreadBars(now)
        self._names = names
        self._named: set[int] = set()
        self._batches = ThreadBatches(self._put)
        self._first = True
        self._opened = False

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """An event begins at its lookup."""

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """Kept until the thread's outermost dispatch has ended."""
        self._open()
        self._batches.add(dispatch)

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """The kernel's times are kept in the dispatch."""

    def ended(self, dispatch: TracedDispatch) -> None:
        """Write the events that are complete."""
        self._batches.ended(dispatch)

    def close(self) -> None:
        """Write the rest; what is still open ends with the trace."""
        self._batches.close()
        self._open()
        self._write(b"\n]}\n")

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._write(b'{"displayTimeUnit": "ms", "traceEvents": [')

    def _put(self, dispatches: Sequence[TracedDispatch]) -> None:
        self._name_thread(dispatches[0].tid)
        for bar in self._bars.of(dispatches):
            for event in events_of(bar, self._pid):
                self._event(event)

    def _name_thread(self, tid: int) -> None:
        """The names, before a thread's first event."""
        if not self._named:
            self._name(self._pid, "process_name", f"process {self._pid}")
        if tid not in self._named:
            self._named.add(tid)
            self._name(tid, "thread_name", self._names(tid))

    def _name(self, tid: int, what: Literal["process_name", "thread_name"], text: str) -> None:
        self._event(NameEvent(self._pid, tid, what, NameArguments(escape(text))))

    def _event(self, event: NameEvent | CompleteEvent) -> None:
        self._write((b"\n" if self._first else b",\n") + shown_json(json.dumps(plain(event))).encode())
        self._first = False


def events_of(bar: Bar, pid: int) -> list[CompleteEvent]:
    """The dispatch and, where its kernel was seen to be entered, the kernel."""
    dispatch, found = bar.dispatch, bar.dispatch.found
    function = found.kernel.function
    args = CompleteArguments(
        found.overload,
        found.keyset,
        found.key,
        found.table_index,
        function or None,
        not found.kernel.unboxed,
        dispatch.returned,
    )
    if not bar.is_end_seen:
        args = args._replace(end="not seen", at_most_us=(bar.until - bar.start) / 1e3)
    start, end = bar.start, bar.end
    times = exact_microseconds(start), exact_microseconds(end - start)
    events = [CompleteEvent(*times, pid, dispatch.tid, found.op, found.event, args)]
    if bar.kernel:
        start, end = bar.kernel
        times = exact_microseconds(start), exact_microseconds(end - start)
        args = args._replace(returned=dispatch.left)
        events.append(CompleteEvent(*times, pid, dispatch.tid, function, "kernel", args))
    return events


def exact_microseconds(nanoseconds: int) -> float:
    """The number of microseconds that is not under the nanosecond when it is multiplied by 1000."""
    found = nanoseconds / 1000
    return found if int(found * 1000) == nanoseconds else math.nextafter(found, math.inf)


_COLUMNS = (
    Column("count", True),
    Column("end not seen", True),
    Column("self µs", True),
    Column("total µs", True),
    Column("mean µs", True),
    Column("longest µs", True),
    Column("event"),
    Column("operator"),
    Column("key"),
    Column("kernel"),
)
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

    def __init__(
        self, write: Callable[[bytes], None], pid: int, now: Callable[[], float], origin: Origin = NO_ORIGIN
    ) -> None:
        self._write = write
        self._origin = origin
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
            facts = "".join(page.facts(self._origin.facts))
            head = f"{self._page.head()}<h1>Trace of process {self._pid}</h1>\n{facts}\n{_BODY}"
            self._text(f"{head}{data_begins('dispatches')}[0")

    def _put(self, dispatches: Sequence[TracedDispatch]) -> None:
        for bar in self._bars.of(dispatches):
            number = self._number(bar.dispatch.found)
            self._costs[number].add(bar)
            self._text(f",{_row(number, bar)}")

    def _number(self, found: LookupResult) -> int:
        # The LookupResult is kept along, so that its id stays its own.
        known = self._kinds.get(id(found))
        if not known:
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
            found.event.value,
            found.qualified,
            found.key,
            found.kernel_text,
        )


def _row(number: int, bar: Bar) -> str:
    kernel, took = (bar.kernel[0] / 1e3, (bar.kernel[1] - bar.kernel[0]) / 1e3) if bar.kernel else (-1.0, -1.0)
    times = f"{bar.start / 1e3:.3f},{bar.lasted / 1e3:.3f},{bar.dispatch.depth}"
    unseen = 0.0 if bar.is_end_seen else (bar.until - bar.start) / 1e3
    return f"{number},{bar.dispatch.tid},{times},{kernel:.3f},{took:.3f},{unseen:.3f}"


def _kind(found: LookupResult) -> list[str]:
    """Event, operator, key, keys, kernel, where it was registered."""
    texts = (found.event.value, found.qualified, found.key, ", ".join(found.keyset.keys), found.kernel_text)
    return [escape(each) for each in (*texts, found.kernel.registered_at or "")]
