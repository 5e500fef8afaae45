"""A trace in Chrome's format (chrome://tracing, Perfetto), as JSON objects, and as a page with a timeline.

Chrome: "Trace Event Format" (the Chromium project's document): complete events (phase "X"), times in microseconds, and
"M" for the names of process and threads. Perfetto makes nanoseconds of the times and drops what is behind the point
(CoerceToTs, src/trace_processor/importers/json/json_utils.cc), so each number is one that gives the right nanosecond.

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
from gdbext.tools.trace.trace_bars import Bar, BarTrace, TraceSink
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
        return "entry"


class EndStep(NamedTuple):
    """The dispatch of that number has ended."""

    tid: Count
    number: Count
    returned: bool

    @json_member(after="")
    def step(self) -> Literal["end"]:
        return "end"


class InnerStep(NamedTuple):
    """A step of the dispatch of that number."""

    step: str
    tid: Count
    number: Count
    text: str


class JsonTrace(TraceSink):
    """Every dispatch, step and end as it happens, as an object."""

    def __init__(self, put: Callable[[dict[str, Any]], None]) -> None:
        self._put = put

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        self._put(plain(EntryStep(tid, depth, DispatchEvent(event), name)))

    def dispatch(self, dispatch: TracedDispatch) -> None:
        self._put(plain(dispatch))

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        self._put(plain(InnerStep(word, dispatch.tid, dispatch.number, text)))

    def ended(self, dispatch: TracedDispatch) -> None:
        self._put(plain(EndStep(dispatch.tid, dispatch.number, dispatch.returned)))


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
        return "X"


class ChromeTrace(BarTrace):
    """Writes ``{"traceEvents": […]}`` piece by piece."""

    def __init__(
        self, write: Callable[[bytes], None], pid: int, now: Callable[[], float], names: Callable[[int], str] = str
    ) -> None:
        """``now`` gives the end of the trace in microseconds, ``names`` the name of a thread by its id."""
        super().__init__(write, now)
        self._pid = pid
        self._names = names
        self._named: set[int] = set()
        self._is_open, self._first = False, True

    def dispatch(self, dispatch: TracedDispatch) -> None:
        self._open()
        super().dispatch(dispatch)

    def close(self) -> None:
        super().close()
        self._open()
        self.write(b"\n]}\n")

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            self.write(b'{"displayTimeUnit": "ms", "traceEvents": [')

    def put(self, bars: Sequence[Bar]) -> None:
        tid = bars[0].dispatch.tid
        if not self._named:
            self._name(self._pid, "process_name", f"process {self._pid}")
        if tid not in self._named:
            self._named.add(tid)
            self._name(tid, "thread_name", self._names(tid))
        for bar in bars:
            for event in events_of(bar, self._pid):
                self._event(event)

    def _name(self, tid: int, what: Literal["process_name", "thread_name"], text: str) -> None:
        self._event(NameEvent(self._pid, tid, what, NameArguments(escape(text))))

    def _event(self, event: NameEvent | CompleteEvent) -> None:
        self.write((b"\n" if self._first else b",\n") + shown_json(json.dumps(plain(event))).encode())
        self._first = False


def events_of(bar: Bar, pid: int) -> list[CompleteEvent]:
    """The dispatch and, where its kernel was seen to be entered, the kernel."""
    dispatch, lookup, kernel = bar.dispatch, bar.dispatch.lookup, bar.dispatch.lookup.kernel
    args = CompleteArguments(
        lookup.overload,
        lookup.keyset,
        lookup.key,
        lookup.table_index,
        kernel.function or None,
        not kernel.unboxed,
        dispatch.returned,
    )
    if not bar.is_end_seen:
        args = args._replace(end="not seen", at_most_us=(bar.until - bar.start) / 1e3)

    times = _exact_microseconds(bar.start), _exact_microseconds(bar.end - bar.start)
    events = [CompleteEvent(*times, pid, dispatch.tid, lookup.op, lookup.event, args)]
    if bar.kernel:
        start, end = bar.kernel
        times = _exact_microseconds(start), _exact_microseconds(end - start)
        args = args._replace(returned=dispatch.left)
        events.append(CompleteEvent(*times, pid, dispatch.tid, kernel.function, "kernel", args))
    return events


def _exact_microseconds(nanoseconds: int) -> float:
    """The number of microseconds that is not under the nanosecond when it is multiplied by 1000."""
    microseconds = nanoseconds / 1000
    return microseconds if int(microseconds * 1000) == nanoseconds else math.nextafter(microseconds, math.inf)


_NUMBERS = ("count", "end not seen", "self µs", "total µs", "mean µs", "longest µs")
_COLUMNS = (*(Column(name, True) for name in _NUMBERS), *map(Column, ("event", "operator", "key", "kernel")))
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


class TimelinePage(BarTrace):
    """Writes the page piece by piece."""

    def __init__(
        self, write: Callable[[bytes], None], pid: int, now: Callable[[], float], origin: Origin = NO_ORIGIN
    ) -> None:
        """``now`` gives the end of the trace in microseconds."""
        super().__init__(write, now)
        self._origin = origin
        self._pid = pid
        self._page = Page(f"Trace of process {pid}", ("timeline", page.SCRIPT))
        self._kinds: dict[int, _Kind] = {}
        """By the id of the LookupResult."""
        self._has_begun = False

    def dispatch(self, dispatch: TracedDispatch) -> None:
        self._begin()
        super().dispatch(dispatch)

    def close(self) -> None:
        self._begin()
        super().close()
        kinds = []
        for lookup in (kind.lookup for kind in self._kinds.values()):
            texts = (
                lookup.event.value,
                lookup.qualified,
                lookup.key,
                ", ".join(lookup.keyset.keys),
                lookup.kernel_text,
            )
            kinds.append([escape(each) for each in (*texts, lookup.kernel.registered_at or "")])
        rows = (kind.cells() for kind in sorted(self._kinds.values(), key=lambda kind: -kind.own))
        body = "\n".join(("<h2>Where the time went</h2>", _TIMES, *page.table(_COLUMNS, rows)))
        self._text(f"]{DATA_ENDS}{embedded('kinds', kinds)}{body}\n{self._page.end()}")

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            facts = "".join(page.facts(self._origin.facts))
            head = f"{self._page.head()}<h1>Trace of process {self._pid}</h1>\n{facts}\n{_BODY}"
            self._text(f"{head}{data_begins('dispatches')}[0")

    def put(self, bars: Sequence[Bar]) -> None:
        for bar in bars:
            lookup = bar.dispatch.lookup
            kind = self._kinds.get(id(lookup))
            if not kind:
                kind = self._kinds[id(lookup)] = _Kind(len(self._kinds), lookup)
            kind.add(bar)
            kernel, took = (-1.0, -1.0)
            if bar.kernel:
                kernel, took = bar.kernel[0] / 1e3, (bar.kernel[1] - bar.kernel[0]) / 1e3
            times = f"{bar.start / 1e3:.3f},{bar.lasted / 1e3:.3f},{bar.dispatch.depth}"
            unseen = 0.0 if bar.is_end_seen else (bar.until - bar.start) / 1e3
            self._text(f",{kind.number},{bar.dispatch.tid},{times},{kernel:.3f},{took:.3f},{unseen:.3f}")

    def _text(self, text: str) -> None:
        self.write(text.encode())


class _Kind:
    """The cost of all dispatches with one LookupResult, which is kept along so that its id stays its own; ``own``
    without what was inside of them."""

    def __init__(self, number: int, lookup: LookupResult) -> None:
        self.number, self.lookup = number, lookup
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

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        lookup, seen = self.lookup, self.count - self.unseen
        mean = self.total / seen if seen else 0.0
        times = (f"{time / 1e3:.1f}" if seen else "" for time in (self.own, self.total, mean, self.longest))
        counts = str(self.count), str(self.unseen or "")
        return (*counts, *times, lookup.event.value, lookup.qualified, lookup.key, lookup.kernel_text)
