"""The dispatches of a trace as they are nested, from the records of the kernel.

dispatch-trace by kernel probes: from records to nested dispatches, while the process runs on.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.diagnosis.reporting import report_target
from gdbext.engine.targets.system.linux import signals_held
from gdbext.errors import GdbextError, TargetError
from gdbext.live.dispatch_description import Describer, LookupResult, TracedDispatch
from gdbext.live.host import PROBES
from gdbext.live.timed_run import DeferredInterrupt, SilenceNotice, WatchedProcess
from gdbext.tools.probes.bpf.probe_keeper import INTERRUPTS
from gdbext.tools.probes.dispatch_counter import filter_of
from gdbext.tools.probes.dispatch_tracer import CallProof, DispatchTracer, Relation, relation
from gdbext.tools.probes.trace_places import LatePlaces, TracePlaces, addresses, unseen_in
from gdbext.tools.trace.hook_installer import TracedOperators
from gdbext.tools.trace.trace_section import OpenDispatch, OpenThread, TraceSection
from gdbext.tools.trace.tracing import MakeSink, Traced, instead_of

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.live.timed_run import Work
    from gdbext.tools.probes.bpf.place_program import TracePlace
    from gdbext.tools.probes.dispatch_tracer import SeenDispatch
    from gdbext.tools.trace.hook_installer import TraceRequest
    from gdbext.tools.trace.trace_output import Sink

_FRESH = 1.0
"""Seconds for which what a table says is taken for granted: a kernel may be registered meanwhile."""
_QUIET = 5e5
"""Microseconds without a dispatch after which a thread is said not to have come back."""
_NO_CODE = (0, 0)


class Nesting:
    """Follows every thread. ``count`` dispatches were shown, ``names`` are their operators; ``is_full``: --limit."""

    def __init__(
        self,
        session: Session,
        operators: TracedOperators,
        request: TraceRequest,
        sink: Sink,
        started: int,
        places: Sequence[TracePlace],
    ) -> None:
        self._session = session
        self._operators = operators
        self._request = request
        self._sink = sink
        self._zero = started
        self._begin = 0
        self._since = frozenset(operator.address for operator in operators.since)
        self._waiting = bool(request.since)
        self._describer = Describer(lambda: session, session, registrations=False)
        self._places = places
        self._proof = CallProof(session, addresses(session, places))
        self._denied: set[Relation] = set()
        self._known: dict[tuple[int, str, int], tuple[float, LookupResult | None]] = {}
        self._foreseen: set[tuple[int, int, int]] = set()
        self._open: dict[int, list[tuple[int, int, TracedDispatch]]] = {}
        """Thread → depth, place and dispatch of those that are open."""
        self.count = 0
        self.names: set[str] = set()
        self.is_full = False
        self.newest = 0.0
        """The beginning of the last one that was shown, in microseconds since the trace began."""
        self.unread = 0
        """Dispatches that are left out: operator or keyset could not be read, or not any more."""

    def begin_at(self, when: int) -> None:
        """Show nothing that is older (nanoseconds)."""
        self._begin = when

    def know_places(self, session: Session, places: Sequence[TracePlace]) -> None:
        """``places`` are those of before and new ones; their libraries are known to ``session``."""
        self._places = places
        self._proof = CallProof(session, addresses(session, places))

    def learn(self, tracer: DispatchTracer) -> None:
        """See which dispatches were made from inside of which others, where that is new. Raises OSError."""
        for snapshot in tracer.snapshots():
            about, holds = self._proof.holds(snapshot)
            if not holds:
                self._denied.add(about)
                tracer.deny(about)

    def foresee(self, tracer: DispatchTracer, data: bytes) -> None:
        """Read what these records are about, for when the process is gone."""
        for place, operator, keyset in tracer.kinds(data) - self._foreseen:
            self._foreseen.add((place, operator, keyset))
            self._found(place, operator, keyset, time.monotonic_ns())

    def take(self, tracer: DispatchTracer, data: bytes) -> None:
        """Show what these records say. Raises OSError."""
        for seen in tracer.dispatches(data):
            if self.is_full:
                return
            self._take(seen)

    def _take(self, seen: SeenDispatch) -> None:
        open_here = self._open.setdefault(seen.tid, [])
        now = (seen.time - self._zero) / 1e3
        while open_here and self._has_ended(*open_here[-1], seen):
            self._end(open_here.pop()[2], now)
        if seen.time < self._begin or not self._wanted(seen.operator):
            return
        found = self._found(seen.place, seen.operator, seen.keyset, seen.time)
        if not found:
            self.unread += 1
            return
        level = len(open_here) + 1
        dispatch = TracedDispatch(
            self.count + 1, seen.tid, level, found, seen.slot + 8, seen.slot, _NO_CODE, seen.returns_to, now
        )
        open_here.append((seen.depth, seen.place, dispatch))
        if self._request.depth and level > self._request.depth:
            return
        self.count += 1
        self.newest = now
        self._sink.dispatch(dispatch)
        self.is_full = bool(self._request.limit) and self.count >= self._request.limit

    def _has_ended(self, depth: int, place: int, outer: TracedDispatch, seen: SeenDispatch) -> bool:
        """``outer`` is over when ``seen`` is made: by the kernel's account, or since it was not made from inside."""
        if depth >= seen.depth:
            return True
        return relation(outer.body, outer.returns_to, place, seen.slot, seen.place) in self._denied

    def _wanted(self, operator: int) -> bool:
        if self._waiting:
            self._waiting = operator not in self._since
        return not self._waiting and (self._request.everything or self._operators.has(operator))

    def _end(self, dispatch: TracedDispatch, now: float) -> None:
        dispatch.ended = now
        if not self._request.depth or dispatch.depth <= self._request.depth:
            self._sink.ended(dispatch)

    def _found(self, place: int, address: int, keyset: int, when: int) -> LookupResult | None:
        """The entry of the operator's table for the keyset; None for what is no operator or no keyset."""
        event = self._places[place].event.value
        key = (address, event, keyset)
        known = self._known.get(key)
        if known and when < known[0]:
            return known[1]
        found = known[1] if known else None
        if not found or not self._is_current(found):
            try:
                operator = self._describer.operator(address)
                found = self._describer.find(operator, event, keyset) if operator else None
            except GdbextError:
                found = None
        if found:
            self.names.add(found.qualified)
        self._known[key] = (when + _FRESH * 1e9, found)
        return found

    def _is_current(self, found: LookupResult) -> bool:
        try:
            return self._session.target.memory.read(found.table_entry, len(found.table_bytes)) == found.table_bytes
        except GdbextError:  # not any more: the process may be gone
            return True

    # --- the end ---------------------------------------------------------------------------------

    def open(self, tracer: DispatchTracer) -> tuple[OpenThread, ...]:
        """The threads that are still inside of dispatches, and have dispatched nothing for a while."""
        found = []
        now = tracer.drained
        for tid, dispatches in self._open.items():
            if not dispatches or now - dispatches[-1][2].started < _QUIET:
                continue
            alive = tracer.still_open(tid, self._session.target)
            inside = [each for depth, _, each in dispatches if depth <= alive]
            if inside:
                shown = tuple(
                    OpenDispatch(each.found.event.value, each.found.qualified, each.found.key, each.last)
                    for each in inside
                )
                found.append(OpenThread(tid, shown, None, ""))
        return tuple(found)


_PAUSE = 0.02
"""Seconds between two looks at the ring."""
_CHECK = 0.25
"""Seconds between two looks at the process."""
_KEPT_BYTES = 1 << 30
"""Most bytes for --last: what is older is dropped; else, what waits to be shown: more stays in the ring, and gets lost
there."""
_PIECE = 4096
"""Dispatches that are shown between two looks at the ring."""


@dataclass(frozen=True)
class Keep:
    """``seconds``: write down only the last ones, at the end (0: everything at once). ``hung_after``: it also ends when
    nothing was dispatched for that many seconds (0: never)."""

    seconds: float = 0.0
    hung_after: float = 0.0


class _Interrupt(Protocol):
    """A sign that the trace is to end."""

    @property
    def came(self) -> bool:
        """True when the trace is to end."""


class ProbeTrace:
    """One run of dispatch-trace in a process that nobody stops."""

    def __init__(
        self,
        session: Session,
        request: TraceRequest,
        keep: Keep,
        notify: Callable[[str], None],
        run_beside: Callable[[Work], Ending] | None = None,
    ) -> None:
        """``notify`` shows at once what the user must know before the end. ``run_beside`` lets a process run that a
        debugger holds."""
        self._run_beside = run_beside
        self._session = session
        self._request = request
        self._keep = keep
        self._notify = notify
        self._notes: list[str] = []
        self._kept: deque[tuple[float, bytes]] = deque()
        self._kept_bytes = 0
        self._has_come, self._last_dispatch = False, time.monotonic()
        self._end = 0.0
        """The end of the trace, where that was not now, in microseconds since its start."""

    def run(self, make_sink: MakeSink, flush: Callable[[], None]) -> Traced:
        """Trace until something ends it; ``flush`` writes what the sink has been given. Raises GdbextError."""
        self._flush = flush
        session, request = self._session, self._request
        places = TracePlaces(session)
        places.begin()
        operators = TracedOperators(session.dispatcher, request)
        for error in operators.unknown:
            raise error
        process, target = WatchedProcess(session.target.pid), report_target(session)
        chosen = places.everything() if request.everything else places.of(operators.all())
        wanted = () if request.everything else [operator.address for operator in operators.all()]
        architecture, pid = session.memory.architecture, session.target.pid
        only = filter_of(session, request.tid, request.key)
        self._late = LatePlaces(session, filtered=not request.everything)
        with ExitStack() as stack:  # whatever was traced when Ctrl+C came is shown
            interrupt = stack.enter_context(DeferredInterrupt(is_heard=self._run_beside is None))
            with signals_held(INTERRUPTS):  # an exception before it is entered would leave the probes
                tracer = stack.enter_context(DispatchTracer(architecture, pid, chosen, wanted, only))
            sink = make_sink(lambda: self._end or (time.monotonic_ns() - tracer.started) / 1e3, pid)
            nesting = Nesting(session, operators, request, sink, tracer.started, chosen)
            ending = self._ending(partial(self._watch, tracer, nesting, process), interrupt)
            left = nesting.open(tracer) if ending.kind is EndingKind.INTERRUPTED else ()
            lost = tracer.lost()
        ending = self._closed(sink, ending)
        self._note_missing(lost, nesting.unread)
        names, unseen = tuple(sorted(nesting.names)), places.unseen + self._late.unseen
        section = TraceSection(
            nesting.count,
            names,
            len(chosen),
            ending,
            left,
            tuple(self._notes),
            engine=PROBES,
            lost=lost,
            unseen=unseen.total(),
            unseen_in=unseen_in(unseen),
        )
        return section, target

    def _note_missing(self, lost: int, unread: int) -> None:
        if lost:
            self._note(f"{lost} dispatches found no room in the ring and are missing")
        if unread:
            self._note(f"{unread} dispatches are left out: operator or table could not be read (any more)")

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._notify(text)

    # --- while it runs ---------------------------------------------------------------------------

    def _ending(self, watch: Callable[[_Interrupt], Ending], interrupt: _Interrupt) -> Ending:
        """Watch; where a debugger holds the process, in another thread, while this one lets it run."""
        pid, instead = self._session.target.pid, instead_of(self._request)
        with SilenceNotice(pid, "dispatch", instead, lambda: self._has_come, self._note):
            if not self._run_beside:
                return watch(interrupt)
            found: list[Ending] = []
            ran = self._run_beside(lambda run: found.append(watch(run)))
            return found[0] if ran.kind is EndingKind.ASKED else ran

    def _watch(
        self, tracer: DispatchTracer, nesting: Nesting, process: WatchedProcess, interrupt: _Interrupt
    ) -> Ending:
        ending: Ending | None = None
        try:
            while not ending and not nesting.is_full:
                ending = self._some(tracer, nesting, process, interrupt)
            self._take(tracer, nesting)
            if self._keep.seconds:
                nesting.begin_at(self._newest(tracer) - int(self._keep.seconds * 1e9))
            while self._kept and not nesting.is_full:
                self._show(tracer, nesting)
        except OSError as error:
            ending = _cannot_write(error)
        if nesting.is_full:
            self._end = nesting.newest
            return Ending(EndingKind.LIMIT, f"--limit {self._request.limit}")
        return ending or Ending(EndingKind.ASKED, "")

    def _take(self, tracer: DispatchTracer, nesting: Nesting) -> bool:
        """All that is in the ring now, for later; whether that was anything."""
        if not self._keep.seconds and self._kept_bytes > _KEPT_BYTES:
            return False
        data = tracer.read()
        nesting.learn(tracer)
        if data:
            self._has_come, self._last_dispatch = True, time.monotonic()
            self._kept.extend((self._last_dispatch, piece) for piece in tracer.pieces(data, _PIECE))
            self._kept_bytes += len(data)
        if self._keep.seconds:
            nesting.foresee(tracer, data)
            self._drop()
        return bool(data)

    def _some(
        self, tracer: DispatchTracer, nesting: Nesting, process: WatchedProcess, interrupt: _Interrupt
    ) -> Ending | None:
        """The dispatches that come until the next look at the process."""
        until = time.monotonic() + _CHECK
        while time.monotonic() < until and not nesting.is_full:
            if interrupt.came:
                return Ending(EndingKind.INTERRUPTED, "interrupted")
            came = self._take(tracer, nesting)
            if self._kept and not self._keep.seconds:
                self._show(tracer, nesting)
            elif not came:
                time.sleep(_PAUSE)
        ending = process.ending()
        if not ending:
            self._add_late(tracer, nesting)
        quiet = time.monotonic() - self._last_dispatch
        if not ending and 0 < self._keep.hung_after < quiet:
            return Ending(EndingKind.ASKED, f"nothing was dispatched for {self._keep.hung_after:g} s")
        return ending

    def _add_late(self, tracer: DispatchTracer, nesting: Nesting) -> None:
        """Libraries that were loaded since the last time are traced, too."""
        try:
            late = self._late.found()
            if late:
                tracer.add(late)
                nesting.know_places(self._late.session, tracer.places)
        except GdbextError as error:
            self._note(f"a library that was loaded later is not traced: {error.what}")

    def _closed(self, sink: Sink, ending: Ending) -> Ending:
        try:
            sink.close()
            self._flush()
        except OSError as error:
            return _cannot_write(error)
        return ending

    def _show(self, tracer: DispatchTracer, nesting: Nesting) -> None:
        """The oldest piece of what was taken."""
        data = self._kept.popleft()[1]
        self._kept_bytes -= len(data)
        nesting.take(tracer, data)
        self._flush()

    def _drop(self) -> None:
        """Drop what --last does not want; counted from the last dispatch, not from now: it may hang already."""
        horizon = self._last_dispatch - self._keep.seconds - _CHECK
        while self._kept and (self._kept[0][0] < horizon or self._kept_bytes > _KEPT_BYTES):
            self._kept_bytes -= len(self._kept.popleft()[1])

    def _newest(self, tracer: DispatchTracer) -> int:
        return tracer.newest(self._kept[-1][1]) if self._kept else 0


def _cannot_write(error: OSError) -> Ending:
    what = f"the trace cannot be written: {os.strerror(error.errno or 0)}"
    return Ending(EndingKind.FAILED, what, error=TargetError(what, help="make room, or name another --output"))
