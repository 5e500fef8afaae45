"""dispatch-trace by kernel probes: turns records into nested dispatches while the process runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.diagnosis.reporting import report_target
from gdbext.engine.targets.system.linux import signals_blocked
from gdbext.errors import GdbextError
from gdbext.live.dispatch_description import Describer, LookupResult, TracedDispatch
from gdbext.live.host import PROBES
from gdbext.live.timed_run import DeferredInterrupt, SilenceNotice, WatchedProcess, ending_of_failure
from gdbext.tools.probes.bpf.probe_keeper import INTERRUPTS
from gdbext.tools.probes.dispatch_counter import filter_of
from gdbext.tools.probes.dispatch_tracer import CallProof, DispatchTracer, SeenDispatch
from gdbext.tools.probes.trace_places import NewLibrarySites, TracePlaces, addresses, unseen_in
from gdbext.tools.trace.hook_installer import MakeSink, Traced, TracedOperators, instead_of
from gdbext.tools.trace.trace_section import OpenDispatch, OpenThread, TraceSection, unproven_note

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.live.timed_run import TimedRun, Work
    from gdbext.tools.probes.bpf.place_program import TracePlace
    from gdbext.tools.trace.trace_output import TraceSink
    from gdbext.tools.trace.tracer import TraceRequest


@dataclass
class Nesting:
    """Follows the open dispatches of every thread, and shows each new one with its level."""

    _session: Session
    _operators: TracedOperators
    _request: TraceRequest
    _sink: TraceSink
    _started: int
    """The beginning of the trace in nanoseconds (CLOCK_MONOTONIC)."""
    _places: Sequence[TracePlace]
    begin: int = field(default=0, init=False)
    """Nanoseconds (CLOCK_MONOTONIC); older dispatches are not shown."""
    count: int = field(default=0, init=False)
    """Number of dispatches that were shown."""
    names: set[str] = field(default_factory=set, init=False)
    """Names of all operators that were looked up."""
    is_full: bool = field(default=False, init=False)
    """--limit is reached."""
    newest: float = field(default=0.0, init=False)
    """The beginning of the last dispatch that was shown, in microseconds since the trace began."""
    unread: int = field(default=0, init=False)
    """Number of dispatches that are omitted, because their operator or keyset could not be read."""
    unproven: int = field(default=0, init=False)
    """Number of dispatches that were shown inside others without proof."""

    def __post_init__(self) -> None:
        """Make the caches, and the reader of operators."""
        session = self._session
        self._since = frozenset(operator.address for operator in self._operators.since)
        self._waits_for_since = bool(self._request.since)
        self._describer = Describer(lambda: session, session, registrations=False)
        self.set_places(session, self._places)
        self._around: dict[int, int | None] = {}
        """Hash of a dispatch and those around it → number of those that it was made from, None if not proven."""
        self._lookups: dict[tuple[int, str, int], tuple[float, LookupResult | None]] = {}
        """(OperatorEntry, event, keyset) → nanoseconds until which the table's entry is valid, and the entry."""
        self._looked_up: set[tuple[int, int, int]] = set()
        """(place, OperatorEntry, keyset) that look_up_kinds() has seen."""
        self._open: dict[int, list[tuple[int, TracedDispatch]]] = {}
        """Thread → (depth, dispatch) of each open dispatch, outermost first."""

    def set_places(self, session: Session, places: Sequence[TracePlace]) -> None:
        """Replace the places when new ones were added, in libraries that ``session`` knows."""
        self._places = places
        self._proof = CallProof(session, addresses(session, places))

    def learn(self, tracer: DispatchTracer) -> None:
        """Prove on each new copy of a stack which dispatches are around the new one, and tell the tracer. Raises
        OSError."""
        for snapshot in tracer.snapshots():
            chain, around = self._proof.check(snapshot)
            self._around[chain] = around
            if around is not None:
                tracer.prove(chain, around)

    def look_up_kinds(self, tracer: DispatchTracer, data: bytes) -> None:
        """Read the operators and table entries of these records now; the process may have exited when they are
        shown."""
        for place, operator, keyset in tracer.kinds(data) - self._looked_up:
            self._looked_up.add((place, operator, keyset))
            self._lookup(place, operator, keyset, time.monotonic_ns())

    def show(self, tracer: DispatchTracer, data: bytes) -> None:
        """Show the dispatches of these records. Raises OSError."""
        for seen in tracer.dispatches(data):
            if self.is_full:
                return
            self._show_dispatch(seen)

    def _show_dispatch(self, seen: SeenDispatch) -> None:
        """End the thread's open dispatches that are not around this one, then show it if it is part of the trace."""
        stack = self._open.setdefault(seen.tid, [])
        now = (seen.time - self._started) / 1e3
        around = self._around.get(seen.chain) if seen.chain else seen.depth - 1
        while stack and stack[-1][0] > (seen.depth - 1 if around is None else min(around, seen.depth - 1)):
            outer = stack.pop()[1]
            outer.ended = now
            if not self._request.depth or outer.depth <= self._request.depth:
                self._sink.ended(outer)
        if seen.time < self.begin:
            return
        if self._waits_for_since:
            self._waits_for_since = seen.operator not in self._since
        if self._waits_for_since or not (self._request.everything or self._operators.has(seen.operator)):
            return
        lookup = self._lookup(seen.place, seen.operator, seen.keyset, seen.time)
        if not lookup:
            self.unread += 1
            return
        level = len(stack) + 1
        dispatch = TracedDispatch(
            self.count + 1, seen.tid, level, lookup, seen.slot + 8, seen.slot, (0, 0), seen.returns_to, now
        )
        if stack and around is None:
            dispatch.nesting = "not proven"
        stack.append((seen.depth, dispatch))
        if not self._request.depth or level <= self._request.depth:
            self.count += 1
            self.unproven += dispatch.nesting is not None
            self.newest = now
            self._sink.dispatch(dispatch)
            self.is_full = bool(self._request.limit) and self.count >= self._request.limit

    def _lookup(self, place: int, address: int, keyset: int, now: int) -> LookupResult | None:
        """The result of looking up a keyset in the table of the OperatorEntry at ``address``; None if one of the two is
        invalid. A result is reused for a second, then checked, because a kernel may have been registered. ``now``:
        nanoseconds."""
        event = self._places[place].event.value
        key = (address, event, keyset)
        valid_until, lookup = self._lookups.get(key, (0.0, None))
        if now < valid_until:
            return lookup
        is_current = False
        if lookup:
            try:
                current = self._session.target.memory.read(lookup.table_entry, len(lookup.table_bytes))
                is_current = current == lookup.table_bytes
            except GdbextError:  # the process may have ended
                is_current = True
        if not is_current:
            try:
                operator = self._describer.operator(address)
                lookup = self._describer.find(operator, event, keyset) if operator else None
            except GdbextError:
                lookup = None
        if lookup:
            self.names.add(lookup.qualified)
        self._lookups[key] = (now + 1e9, lookup)
        return lookup

    def open_threads(self, tracer: DispatchTracer) -> tuple[OpenThread, ...]:
        """The threads that are still inside of dispatches, and have dispatched nothing for half a second."""
        threads = []
        for tid, stack in self._open.items():
            if stack and tracer.last_read - stack[-1][1].started >= 5e5:
                on_stack = tracer.still_open(tid, self._session.target)
                dispatches = tuple(OpenDispatch.of(dispatch) for depth, dispatch in stack if depth <= on_stack)
                if dispatches:
                    threads.append(OpenThread(tid, dispatches, stopped_in=None, meaning=""))
        return tuple(threads)


_CHECK = 0.25
"""Seconds between two checks of the process."""
_KEPT_BYTES = 1 << 30
"""Most bytes of records in memory. With --last older ones are dropped; without, further ones stay in the ring, where
they may get lost."""


@dataclass
class ProbeTrace:
    """One run of dispatch-trace in a process that runs."""

    _session: Session
    _request: TraceRequest
    _notify: Callable[[str], None]
    """Shows a note at once."""
    _flush: Callable[[], None]
    """Writes the sink's output."""
    _run_beside: Callable[[Work], Ending] | None
    """Resumes a process that a debugger traces while another thread does the work; None if no debugger traces it."""

    def __post_init__(self) -> None:
        """Start without notes and records."""
        self._notes: list[str] = []
        self._kept: deque[tuple[float, bytes]] = deque()
        """(time of the read, piece of records) of those that were not shown yet."""
        self._kept_bytes = 0
        self._has_dispatches, self._last_dispatch = False, time.monotonic()
        self._end = 0.0
        """The end of the trace in microseconds since its start, 0 for now."""

    def run(self, make_sink: MakeSink) -> Traced:
        """Trace until something ends it. Raises GdbextError."""
        session, request = self._session, self._request
        places = TracePlaces(session)
        places.begin()
        operators = TracedOperators(session.dispatcher, request)
        for error in operators.unknown:
            raise error
        self._process, target = WatchedProcess(session.target.pid), report_target(session)
        chosen = places.everything() if request.everything else places.places_of(operators.all)
        wanted = () if request.everything else [operator.address for operator in operators.all]
        architecture, pid = session.memory.architecture, session.target.pid
        only = filter_of(session, request.tid, request.key)
        self._new_libraries = NewLibrarySites(session, filtered=not request.everything)
        with ExitStack() as stack:  # everything that was traced before Ctrl+C is shown
            interrupt = stack.enter_context(DeferredInterrupt(is_heard=self._run_beside is None))
            with signals_blocked(INTERRUPTS):  # an exception before it is entered would leave the probes
                self._tracer = tracer = stack.enter_context(DispatchTracer(architecture, pid, chosen, wanted, only))
            sink = make_sink(lambda: self._end or (time.monotonic_ns() - tracer.started) / 1e3, pid)
            self._nesting = nesting = Nesting(session, operators, request, sink, tracer.started, chosen)
            with SilenceNotice(pid, "dispatch", instead_of(request), lambda: self._has_dispatches, self._note):
                if not self._run_beside:
                    ending = self._watch(interrupt)
                else:  # in another thread, while this one runs the process
                    endings: list[Ending] = []
                    ending = self._run_beside(lambda run: endings.append(self._watch(run)))
                    if ending.kind is EndingKind.ASKED:
                        ending = endings[0]
            left = nesting.open_threads(tracer) if ending.kind is EndingKind.INTERRUPTED else ()
            lost = tracer.lost()
        try:
            sink.close()
            self._flush()
        except OSError as error:
            ending = ending_of_failure(error)
        if lost:
            self._note(f"{lost} dispatches are missing because the buffer was full")
        if nesting.unread:
            self._note(f"{nesting.unread} dispatches are omitted: their operator or table could not be read")
        if nesting.unproven:
            self._note(unproven_note(nesting.unproven))
        unseen = places.unseen + self._new_libraries.unseen
        section = TraceSection(
            nesting.count,
            tuple(sorted(nesting.names)),
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

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._notify(text)

    def _watch(self, interrupt: DeferredInterrupt | TimedRun) -> Ending:
        """Read and show dispatches until something ends that."""
        ending: Ending | None = None
        nesting, last = self._nesting, self._request.last
        try:
            while not ending and not nesting.is_full:
                ending = self._watch_briefly(interrupt)
            self._read()
            if last:
                newest = self._tracer.newest(self._kept[-1][1]) if self._kept else 0
                nesting.begin = newest - int(last * 1e9)
            while self._kept and not nesting.is_full:
                self._show()
        except OSError as error:
            ending = ending_of_failure(error)
        if nesting.is_full:
            self._end = nesting.newest
            return Ending(EndingKind.LIMIT, f"--limit {self._request.limit}")
        return ending or Ending(EndingKind.ASKED, "")

    def _watch_briefly(self, interrupt: DeferredInterrupt | TimedRun) -> Ending | None:
        """Read and show dispatches until the next check of the process; the ending of the trace, None to continue."""
        until = time.monotonic() + _CHECK
        while time.monotonic() < until and not self._nesting.is_full:
            if interrupt.came:
                return Ending(EndingKind.INTERRUPTED, "interrupted")
            has_read = self._read()
            if self._kept and not self._request.last:
                self._show()
            elif not has_read:
                time.sleep(0.02)
        ending = self._process.ending()
        if ending:
            return ending
        try:
            if places := self._new_libraries.find():
                self._tracer.add(places)
                self._nesting.set_places(self._new_libraries.session, self._tracer.places)
        except GdbextError as error:
            self._note(f"a library that was loaded later is not traced: {error.what}")
        if 0 < self._request.hung_after < time.monotonic() - self._last_dispatch:
            return Ending(EndingKind.ASKED, f"nothing was dispatched for {self._request.hung_after:g} s")
        return None

    def _read(self) -> bool:
        """Take the records from the ring and store them; False if there was none, or no room for them."""
        last = self._request.last
        if not last and self._kept_bytes > _KEPT_BYTES:
            return False
        data = self._tracer.read()
        self._nesting.learn(self._tracer)
        if data:
            self._has_dispatches, self._last_dispatch = True, time.monotonic()
            self._kept.extend((self._last_dispatch, piece) for piece in self._tracer.pieces(data, 4096))
            self._kept_bytes += len(data)
        if last:
            self._nesting.look_up_kinds(self._tracer, data)
            # Drop what is too old for --last, counted from the last dispatch, not from now: it may hang already.
            horizon = self._last_dispatch - last - _CHECK
            while self._kept and (self._kept[0][0] < horizon or self._kept_bytes > _KEPT_BYTES):
                self._kept_bytes -= len(self._kept.popleft()[1])
        return bool(data)

    def _show(self) -> None:
        """Show the oldest stored piece of records."""
        data = self._kept.popleft()[1]
        self._kept_bytes -= len(data)
        self._nesting.show(self._tracer, data)
        self._flush()
