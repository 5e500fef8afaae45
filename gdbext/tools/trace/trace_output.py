"""Writes a trace: as text to the terminal, as JSON objects, as bars to a Chrome trace, a page or flame graphs.

The text has PyTorch's lines (``_print_dispatch_trace``, Dispatcher.cpp): as many spaces as dispatches are open, the new
one included, then ``[call] op=[…], key=[…]``, and the time since the trace began. Lines of --verbose have one more
space.

Viewers drop a bar that ends after the bar around it, even by a tenth of a microsecond. So a bar ends at the latest with
the one around it, and where the next one on its level begins; all times are whole nanoseconds. Probes do not see ends:
a dispatch is over when its thread makes the next one that is not inside of it. The last one inside of another may have
ended long before, and one that is open when the trace ends may last longer: such bars are drawn up to the last thing
that was seen inside of them, and do not count in sums.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.engine.formats.whole_file import WholeFile
from gdbext.engine.terminal import shown, shown_json
from gdbext.engine.vocabulary import json_member
from gdbext.errors import TargetError
from gdbext.live.dispatch_description import LookupResult, TracedDispatch
from gdbext.render import escape, page
from gdbext.render.page import DATA_ENDS, NO_ORIGIN, Column, Origin, Page, data_begins, embedded
from gdbext.render.plain_json import plain
from gdbext.tools.probes.flame_files import SPEEDSCOPE, FlameStacks, SpeedscopeProfiles, is_flame_file
from gdbext.torch.registry.dispatch_table import registration_text
from gdbext.torch.stack import DispatchEvent, DispatchKeySet

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Amount, Count, Sparse


class TraceSink:
    """The receiver of a trace; methods that are not overridden do nothing. Everything may raise OSError."""

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """The operator's function was entered; there is no keyset yet."""

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """A dispatch began with its lookup."""

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """A step inside a dispatch; ``word``: "enter", "boxed", "meta", "impl", "return" …"""

    def ended(self, dispatch: TracedDispatch) -> None:
        """The dispatch is over; ``dispatch.returned``: its return was seen."""

    def close(self) -> None:
        """The trace is over. Dispatches that did not end have ``ended`` None."""


class Bar:
    """One dispatch in time. All times are nanoseconds since the trace began."""

    def __init__(self, dispatch: TracedDispatch, start: int, until: int, parent: Bar | None) -> None:
        """``parent``: the bar around it, None for an outermost one."""
        self.dispatch, self.start, self.parent = dispatch, start, parent
        self.until = until  # the latest possible end
        self.end = until  # the earliest possible end; equal to ``until`` if the end was seen
        self.is_end_seen = dispatch.ended is not None
        self.own = 0  # the part of its time in which no dispatch inside of it is known to have run
        self.kernel: tuple[int, int] | None = None  # (start, end) of its kernel, None if that was not seen
        self.inside: list[Bar] = []
        self.newest = start  # the latest start of a bar inside

    @property
    def lasted(self) -> int:
        return self.end - self.start

    def finish(self) -> None:
        """Compute the end and what depends on it, after the bars inside are finished and those on its level bounded."""
        is_last = bool(self.parent and self.until >= self.parent.until)
        if not self.dispatch.returned and self.is_end_seen and is_last:
            self.is_end_seen = False
            self.end = max((self.start, *(inner.end for inner in self.inside)))
        self.end = max(self.start, self.end)
        self.until = self.end if self.is_end_seen else max(self.end, self.until)
        self.own = self.lasted - sum(inner.lasted for inner in self.inside)
        began, ended = self.dispatch.kernel_started, self.dispatch.kernel_ended
        if began is not None:  # everything inside of the dispatch is inside of its kernel
            start = min((_nanoseconds(began), *(inner.start for inner in self.inside[:1])))
            end = self.end if ended is None else max((_nanoseconds(ended), *(inner.end for inner in self.inside[-1:])))
            start = min(max(start, self.start), self.end)
            self.kernel = start, max(start, min(end, self.end))


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def bars(dispatches: Sequence[TracedDispatch], now: float, earliest: int = 0) -> list[Bar]:
    """The bars of one thread's dispatches, which are in order of entry; none begins before ``earliest`` (nanoseconds).
    ``now`` is the end of the trace in microseconds."""
    around: list[Bar] = []
    all_bars: list[Bar] = []
    start, end_of_trace = earliest, _nanoseconds(now)
    for dispatch in dispatches:
        start = max(start, _nanoseconds(dispatch.started))
        while around and around[-1].dispatch.depth >= dispatch.depth:
            previous = around.pop()
            previous.until = max(previous.start, min(previous.until, start))
        until = max(start, end_of_trace if dispatch.ended is None else _nanoseconds(dispatch.ended))
        bar = Bar(dispatch, start, until, around[-1] if around else None)
        if bar.parent:
            bar.parent.inside.append(bar)
        around.append(bar)
        all_bars.append(bar)
    for bar in reversed(all_bars):
        bar.until = max(bar.until, bar.newest)
        if bar.parent:  # it lasted at least until then
            bar.parent.newest = max(bar.parent.newest, bar.newest)
    for bar in all_bars:  # outer ones first
        if bar.parent:
            bar.until = max(bar.start, min(bar.until, bar.parent.until))
        bar.end = bar.until
    for bar in reversed(all_bars):  # inner ones first
        bar.finish()
    return all_bars


class BarTrace(TraceSink):
    """A trace that is written as bars: those of a thread's outermost dispatch and of all inside, when it has ended."""

    def __init__(self, write: Callable[[bytes], None], now: Callable[[], float]) -> None:
        """``now`` returns the end of the trace in microseconds."""
        self.write = write
        self._now = now
        self._has_head = False
        self._pending: dict[int, list[TracedDispatch]] = {}
        self._ends: dict[int, int] = {}  # thread → the end of its last bar

    def head(self) -> str:
        """The beginning of the file, which is written at the first dispatch, or when the trace is over without one."""
        return ""

    @abstractmethod
    def put(self, bars: Sequence[Bar]) -> None:
        """Write the bars of one outermost dispatch, in order of entry."""

    def dispatch(self, dispatch: TracedDispatch) -> None:
        if not self._has_head:
            self._has_head = True
            self.write(self.head().encode())
        self._pending.setdefault(dispatch.tid, []).append(dispatch)

    def ended(self, dispatch: TracedDispatch) -> None:
        pending = self._pending.get(dispatch.tid)
        if pending and pending[0] is dispatch:
            self._put_thread(dispatch.tid)

    def close(self) -> None:
        """Write the rest: dispatches that are still open end with the trace."""
        if not self._has_head:
            self.write(self.head().encode())
        for tid in list(self._pending):
            self._put_thread(tid)

    def _put_thread(self, tid: int) -> None:
        complete = bars(self._pending.pop(tid), self._now(), self._ends.get(tid, 0))
        self._ends[tid] = max(bar.until for bar in complete)
        self.put(complete)


class FlameTrace(BarTrace):
    """A trace as stacks with the own time of each (``collapsed``), or as profiles of speedscope, one for each thread.
    Written when the trace is over."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        pid: int,
        now: Callable[[], float],
        name: Callable[[int], str],
        speedscope: bool,
    ) -> None:
        """``name`` gives the name of a thread."""
        super().__init__(write, now)
        self._name = name
        self._stacks = FlameStacks()
        self._profiles = SpeedscopeProfiles(f"process {pid}") if speedscope else None

    def close(self) -> None:
        super().close()
        self.write((self._profiles or self._stacks).text().encode())

    def put(self, bars: Sequence[Bar]) -> None:
        """Add the bars to the thread's profile, or the own time of each to its stack."""
        thread = self._name(bars[0].dispatch.tid)
        if self._profiles:
            self._profiles.add(thread, ((_frame(bar), bar.start, bar.end, bar.dispatch.depth) for bar in bars))
            return
        stacks: dict[Bar, tuple[str, ...]] = {}
        for bar in bars:
            around = stacks[bar.parent] if bar.parent else (thread,)
            stacks[bar] = (*around, _frame(bar))
            if bar.is_end_seen:
                self._stacks.add(stacks[bar], bar.own)


def _frame(bar: Bar) -> str:
    """The name of a dispatch in flame graphs: ``aten::mm [call CPU]``."""
    lookup = bar.dispatch.lookup
    return f"{lookup.qualified} [{lookup.event.value} {lookup.key}]"


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
    """Every dispatch, step and end as it happens, as an object that ``put`` gets."""

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
    """A function that writes an object as a line, at once, so that the last one before a hang is in the file."""
    return lambda document: write(shown_json(json.dumps(document)).encode() + b"\n")


class NameArguments(NamedTuple):
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
    """``dur`` is the least possible duration."""
    at_most_us: Sparse[Amount | None] = None
    """With ``end``: the longest possible duration."""
    nesting: Sparse[Literal["not proven"] | None] = None
    """It may be outside the dispatch that it is shown in."""


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
        """``now`` returns the end of the trace in microseconds, ``names`` the name of a thread by its id."""
        super().__init__(write, now)
        self._pid = pid
        self._names = names
        self._named: set[int] = set()
        self._has_event = False

    def head(self) -> str:
        return '{"displayTimeUnit": "ms", "traceEvents": ['

    def close(self) -> None:
        super().close()
        self.write(b"\n]}\n")

    def put(self, bars: Sequence[Bar]) -> None:
        """Write the bars' events, and before the first ones of the process or thread its name."""
        tid = bars[0].dispatch.tid
        if not self._named:
            self._write_name(self._pid, "process_name", f"process {self._pid}")
        if tid not in self._named:
            self._named.add(tid)
            self._write_name(tid, "thread_name", self._names(tid))
        for bar in bars:
            for event in events_of(bar, self._pid):
                self._write_event(event)

    def _write_name(self, tid: int, kind: Literal["process_name", "thread_name"], text: str) -> None:
        self._write_event(NameEvent(self._pid, tid, kind, NameArguments(escape(text))))

    def _write_event(self, event: NameEvent | CompleteEvent) -> None:
        self.write((b",\n" if self._has_event else b"\n") + shown_json(json.dumps(plain(event))).encode())
        self._has_event = True


def events_of(bar: Bar, pid: int) -> list[CompleteEvent]:
    """The events of a dispatch and, if its kernel was seen to be entered, of the kernel."""
    dispatch, lookup, kernel = bar.dispatch, bar.dispatch.lookup, bar.dispatch.lookup.kernel
    args = CompleteArguments(
        *(lookup.overload, lookup.keyset, lookup.key, lookup.table_index),
        *(kernel.function or None, not kernel.unboxed, dispatch.returned),
        nesting=dispatch.nesting,
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
    """The microseconds, rounded so that Perfetto, which multiplies by 1000 and truncates (CoerceToTs,
    trace_processor/importers/json/json_utils.cc), gets ``nanoseconds`` back."""
    microseconds = nanoseconds / 1000
    return microseconds if int(microseconds * 1000) == nanoseconds else math.nextafter(microseconds, math.inf)


_BODY = """\
<noscript><p class="warning">The timeline needs JavaScript; the table below does not.</p></noscript>
<div class="tools"><input type="search" id="search" placeholder="search: operator, key, kernel"><span id="found" \
class="note"></span><button id="whole">show all</button></div>
<canvas class="timeline" id="timeline"></canvas><div class="tip" id="tip" hidden></div>
<p class="note">Wheel: zoom; drag: move; double click: zoom to a dispatch; Enter in the search: next match.
Keys: + − ← →. The page's address links to the current view.</p>
<dl class="facts" id="chosen"></dl>
"""
_TIMES = """\
<p class="note">A dispatch lasts until its return, if that was seen, or until its thread starts the next one outside it.
So the last dispatch before a pause includes the pause. Self: without the dispatches inside it. If the end was not seen,
which can happen to the last dispatch inside another and to one that is still open, the bar is pale after the last thing
that is known of it, and the dispatch is not in these sums; the time after it counts for the one around it.</p>"""


class TimelinePage(BarTrace):
    """Writes the page piece by piece. A dispatch is eight numbers: its kind, thread, start, duration, level, start and
    duration of its kernel (-1 if that was not seen), and the longest possible duration if its end was not seen, else 0.
    Times are microseconds."""

    def __init__(
        self, write: Callable[[bytes], None], pid: int, now: Callable[[], float], origin: Origin = NO_ORIGIN
    ) -> None:
        """``now`` returns the end of the trace in microseconds."""
        super().__init__(write, now)
        self._origin = origin
        self._pid = pid
        self._page = Page(f"Trace of process {pid}", ("timeline", page.SCRIPT))
        self._kinds: dict[int, _KindCost] = {}  # by the id of the LookupResult

    def head(self) -> str:
        facts = "".join(page.facts(self._origin.facts))
        title = f"<h1>Trace of process {self._pid}</h1>"
        return f"{self._page.head()}{title}\n{facts}\n{_BODY}{data_begins('dispatches')}[0"

    def close(self) -> None:
        """Write the rest of the dispatches, their kinds, and the table of where the time went."""
        super().close()
        kinds = []
        for lookup in (kind.lookup for kind in self._kinds.values()):
            keys = ", ".join(lookup.keyset.keys)
            texts = lookup.event.value, lookup.qualified, lookup.key, keys, lookup.kernel_text
            kinds.append([escape(text) for text in (*texts, registration_text(lookup.kernel.registered_at or ""))])
        numbers = ("count", "end not seen", "self µs", "total µs", "mean µs", "longest µs")
        columns = [Column(name, True) for name in numbers] + list(map(Column, ("event", "operator", "key", "kernel")))
        rows = (kind.cells() for kind in sorted(self._kinds.values(), key=lambda kind: -kind.own))
        body = "\n".join(("<h2>Where the time went</h2>", _TIMES, *page.table(columns, rows)))
        self.write(f"]{DATA_ENDS}{embedded('kinds', kinds)}{body}\n{self._page.end()}".encode())

    def put(self, bars: Sequence[Bar]) -> None:
        """Write the numbers of each dispatch."""
        for bar in bars:
            lookup = bar.dispatch.lookup
            kind = self._kinds.get(id(lookup))
            if not kind:
                kind = self._kinds[id(lookup)] = _KindCost(len(self._kinds), lookup)
            kind.add(bar)
            kernel = "-1.000,-1.000"
            if bar.kernel:
                kernel = f"{bar.kernel[0] / 1e3:.3f},{(bar.kernel[1] - bar.kernel[0]) / 1e3:.3f}"
            times = f"{bar.start / 1e3:.3f},{bar.lasted / 1e3:.3f},{bar.dispatch.depth}"
            at_most = 0.0 if bar.is_end_seen else (bar.until - bar.start) / 1e3
            self.write(f",{kind.number},{bar.dispatch.tid},{times},{kernel},{at_most:.3f}".encode())


class _KindCost:
    """The cost of all dispatches with one LookupResult, which is stored so that its id stays unique. ``own``: the time
    without dispatches inside of them; ``unseen``: number of dispatches whose end was not seen. Times are
    nanoseconds."""

    def __init__(self, number: int, lookup: LookupResult) -> None:
        self.number, self.lookup = number, lookup
        self.count, self.total, self.own, self.longest, self.unseen = 0, 0, 0, 0, 0

    def add(self, bar: Bar) -> None:
        """Add a dispatch to the cost; one whose end was not seen is only counted."""
        self.count += 1
        if not bar.is_end_seen:
            self.unseen += 1
            return
        self.total += bar.lasted
        self.own += bar.own
        self.longest = max(self.longest, bar.lasted)

    def cells(self) -> tuple[str, ...]:
        """The row of the page's table: counts, times in microseconds, names."""
        lookup, seen = self.lookup, self.count - self.unseen
        mean = self.total / seen if seen else 0.0
        times = (f"{time / 1e3:.1f}" if seen else "" for time in (self.own, self.total, mean, self.longest))
        counts = str(self.count), str(self.unseen or "")
        return (*counts, *times, lookup.event.value, lookup.qualified, lookup.key, lookup.kernel_text)


class TextTrace(TraceSink):
    """Lines for people."""

    def __init__(self, write: Callable[[bytes], None], verbose: bool = False) -> None:
        """``write`` gets each line at once, so that the last one before a hang is shown."""
        self._write = write
        self._verbose = verbose
        self._texts: dict[int, tuple[LookupResult, bytes]] = {}
        """By the id of a LookupResult, which is stored, so that its id stays unique."""
        self._tid = 0

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        self._line(tid, depth, _encoded(f"[entry] op=[{escape(name)}], event=[{event}]\n"))

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """Write PyTorch's line, ``[call] op=[aten::mm], key=[AutogradMeta]``; with --verbose also the steps of the
        lookup, from the table in memory."""
        lookup, depth = dispatch.lookup, dispatch.depth
        if id(lookup) not in self._texts:
            text = f"[{lookup.event.value}] op=[{escape(lookup.qualified)}], key=[{lookup.key}]"
            text += ", no kernel" if lookup.kernel.valid is False else ""
            self._texts[id(lookup)] = (lookup, _encoded(text))
        nesting = b", nesting=[not proven]" if dispatch.nesting else b""
        at = b", at=[%.6f s]" % (dispatch.started / 1e6)
        self._line(dispatch.tid, depth, self._texts[id(lookup)][1] + at + nesting + b"\n")
        if not self._verbose:
            return
        kernel, keyset = lookup.kernel, lookup.keyset
        kinds = f"valid=[{kernel.valid:d}], boxed=[{kernel.boxed:d}], unboxed=[{kernel.unboxed:d}]"
        where = f", path=[{kernel.path}]" if kernel.path else ""
        origin = f", {registration_text(kernel.registered_at)}" if kernel.registered_at else ""
        for text in (
            f"[lookup] keyset=[DispatchKeySet({', '.join(keyset.keys)})], bits=[{keyset.bits:#x}]\n",
            f"[index] key=[{lookup.key}], index=[{lookup.table_index}], {kinds}\n",
            f"[found] kernel=[{escape(lookup.kernel_text)}]{where}{escape(origin)}\n",
        ):
            self._line(dispatch.tid, depth + 1, _encoded(text))

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        if self._verbose:
            self._line(dispatch.tid, dispatch.depth + 1, _encoded(f"[{word}] {escape(text)}\n"))

    def _line(self, tid: int, depth: int, text: bytes) -> None:
        """Write a line with ``depth`` spaces before it, and a line on the thread if that has changed."""
        if tid != self._tid:
            if self._tid:
                self._write(b"thread %d\n" % tid)
            self._tid = tid
        self._write(b" " * depth + text)


def _encoded(line: str) -> bytes:
    return shown(line).encode()


def shows_time(path: str | None) -> bool:
    """True if the format of the file has durations, for which returns must be hooked, too."""
    return (path or "").endswith((".html", ".json")) or is_flame_file(path)


@dataclass
class TraceOutput:
    """Where a trace is written; a context manager. A page appears when it is complete, everything else as it happens,
    so that the last line before a hang is in the file."""

    _path: str | None
    """The file of --output; None for the terminal."""
    _verbose: bool
    _quiet: bool
    """Only the JSON document is shown."""
    _show: Callable[[str], None]
    """Writes to the terminal."""
    _names: Callable[[int], str] = str
    """Thread id → name."""
    _origin: Origin = NO_ORIGIN
    """Facts for a page."""

    def __post_init__(self) -> None:
        """Open the file. Raises TargetError."""
        path, show = self._path, self._show
        self._events: list[Mapping[str, object]] | None = [] if self._quiet and not path else None
        self._batch: list[bytes] = []
        self._is_page = (path or "").endswith(".html")
        self._file: WholeFile | None = None
        self._write: Callable[[bytes], None] = lambda data: show(data.decode())
        if path is not None:
            try:
                self._file = WholeFile(path)
                if not self._is_page:
                    self._file.show()
            except OSError as error:
                raise _cannot_write(path, error) from error
            self._write = self._file.write

    def sink(self, now: Callable[[], float], pid: int) -> TraceSink:
        """The receiver that writes each dispatch at once; parameters as in _make_sink()."""
        return self._make_sink(self._write, now, pid)

    def batches(self, now: Callable[[], float], pid: int) -> TraceSink:
        """The receiver for many dispatches at a time, which flush() writes."""
        return self._make_sink(self._batch.append, now, pid)

    def flush(self) -> None:
        """Write what the receiver of batches() has stored. Raises OSError."""
        data = b"".join(self._batch)
        self._batch.clear()
        if data:
            self._write(data)

    def _make_sink(self, write: Callable[[bytes], None], now: Callable[[], float], pid: int) -> TraceSink:
        """The receiver for the format that the file's ending names. ``now`` returns the microseconds since the
        start."""
        path = self._path or ""
        if self._events is not None:
            return JsonTrace(self._events.append)
        if self._is_page:
            return TimelinePage(write, pid, now, self._origin)
        if is_flame_file(path):
            return FlameTrace(write, pid, now, self._names, path.endswith(SPEEDSCOPE))
        if path.endswith(".json"):
            return ChromeTrace(write, pid, now, self._names)
        return JsonTrace(json_lines(write)) if path.endswith(".jsonl") else TextTrace(write, self._verbose)

    def notify(self, text: str) -> None:
        """Show a note at once; with --json it is only in the document's notes."""
        if not self._quiet:
            self._show(f"note: {text}\n")

    @property
    def events(self) -> tuple[Mapping[str, object], ...] | None:
        """The events for the document, None if they are written elsewhere."""
        return None if self._events is None else tuple(self._events)

    def finish(self, ending: Ending) -> None:
        """Keep the page when the trace is over. Raises TargetError."""
        if self._file and self._is_page and ending.kind is not EndingKind.FAILED:
            try:
                self._file.keep()
            except OSError as error:
                raise _cannot_write(self._path, error) from error

    def __enter__(self) -> TraceOutput:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.discard()


def _cannot_write(path: str | None, error: OSError) -> TargetError:
    return TargetError(f"cannot write to {path}: {error.strerror}", help="choose another --output")
