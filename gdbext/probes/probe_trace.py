"""dispatch-trace by kernel probes: from records to nested dispatches, while the process runs on."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError, TargetError
from gdbext.inspection.target_reporting import report_target
from gdbext.live.trace.traced_operators import TracedOperators
from gdbext.live.trace.tracing import MakeSink, Traced
from gdbext.model.ending import Ending, EndingKind
from gdbext.probes.dispatch_filter import filter_of
from gdbext.probes.dispatch_tracer import DispatchTracer
from gdbext.probes.late_interrupt import LateInterrupt
from gdbext.probes.nesting import Nesting
from gdbext.probes.places.late_places import LatePlaces
from gdbext.probes.places.trace_places import TracePlaces
from gdbext.probes.watched_process import WatchedProcess

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.trace.sink import Sink
    from gdbext.live.trace.trace_request import TraceRequest

_PAUSE = 0.02
"""Seconds between two looks at the ring."""
_CHECK = 0.25
"""Seconds between two looks at the process."""
_KEPT_BYTES = 1 << 30
"""Of --last: what is older is dropped; else, what waits to be shown: more stays in the ring, and gets lost there."""
_PIECE = 4096
"""Dispatches that are shown between two looks at the ring."""


@dataclass(frozen=True)
class Keep:
    """``seconds``: write down only the last ones, at the end (0: everything at once). ``hung_after``: it also ends when
    nothing was dispatched for that many seconds (0: never)."""

    seconds: float = 0.0
    hung_after: float = 0.0


class ProbeTrace:
    """One run of dispatch-trace in a process that nobody stops."""

    def __init__(self, session: Session, request: TraceRequest, keep: Keep, notify: Callable[[str], None]) -> None:
        """``notify`` shows at once what the user must know before the end."""
        self._session = session
        self._request = request
        self._keep = keep
        self._notify = notify
        self._notes: list[str] = []
        self._kept: deque[tuple[float, bytes]] = deque()
        self._kept_bytes = 0
        self._last_dispatch = time.monotonic()
        self._end = 0.0
        """When the trace was over, where that was not now, in microseconds since its start."""

    def run(self, make_sink: MakeSink, flush: Callable[[], None]) -> Traced:
        """Trace until something ends it; ``flush`` writes what the sink has been given. Raises GdbextError."""
        self._flush = flush
        session, request = self._session, self._request
        operators = TracedOperators(session.dispatcher, request)
        for error in operators.unknown:
            raise error
        process, target = WatchedProcess(session.target.pid), report_target(session)
        places = TracePlaces(session)
        chosen = places.everything() if request.everything else places.of(operators.all())
        wanted = () if request.everything else [operator.address for operator in operators.all()]
        architecture, pid = session.memory.architecture, session.target.pid
        only = filter_of(session, request.tid, request.key)
        self._late = LatePlaces(session, filtered=not request.everything)
        with DispatchTracer(architecture, pid, chosen, wanted, only) as tracer:
            sink = make_sink(lambda: self._end or (time.monotonic_ns() - tracer.started) / 1e3, pid)
            nesting = Nesting(session, operators, request, sink, tracer.started, chosen)
            ending = self._watch(tracer, nesting, process)
            left = nesting.open(tracer) if ending.kind is EndingKind.INTERRUPTED else ()
            lost = tracer.lost()
        ending = self._closed(sink, ending)
        if lost:
            self._note(f"{lost} dispatches found no room in the ring and are missing")
        if nesting.unread:
            self._note(f"{nesting.unread} dispatches are left out: operator or table could not be read (any more)")
        names = tuple(sorted(nesting.names))
        return Traced(
            target, nesting.count, ending, names, len(chosen), left, tuple(self._notes), lost,
            places.unseen + self._late.unseen,
        )

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._notify(text)

    # --- while it runs ---------------------------------------------------------------------------

    def _watch(self, tracer: DispatchTracer, nesting: Nesting, process: WatchedProcess) -> Ending:
        ending: Ending | None = None
        try:
            with LateInterrupt() as interrupt:
                while ending is None and not nesting.is_full:
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
            self._last_dispatch = time.monotonic()
            self._kept.extend((self._last_dispatch, piece) for piece in tracer.pieces(data, _PIECE))
            self._kept_bytes += len(data)
        if self._keep.seconds:
            nesting.foresee(tracer, data)
            self._drop()
        return bool(data)

    def _some(
        self, tracer: DispatchTracer, nesting: Nesting, process: WatchedProcess, interrupt: LateInterrupt
    ) -> Ending | None:
        """What comes until the next look at the process."""
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
        if ending is None:
            self._add_late(tracer, nesting)
        quiet = time.monotonic() - self._last_dispatch
        if ending is None and 0 < self._keep.hung_after < quiet:
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
        """What --last does not want; counted from the last dispatch, not from now: it may hang already."""
        horizon = self._last_dispatch - self._keep.seconds - _CHECK
        while self._kept and (self._kept[0][0] < horizon or self._kept_bytes > _KEPT_BYTES):
            self._kept_bytes -= len(self._kept.popleft()[1])

    def _newest(self, tracer: DispatchTracer) -> int:
        return tracer.newest(self._kept[-1][1]) if self._kept else 0


def _cannot_write(error: OSError) -> Ending:
    what = f"the trace cannot be written: {os.strerror(error.errno or 0)}"
    return Ending(EndingKind.FAILED, what, error=TargetError(what, help="make room, or name another --output"))
