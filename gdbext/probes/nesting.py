"""The dispatches of a trace as they are nested, from the records of the kernel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.live.trace.describe import Describer
from gdbext.model.dispatch.traced_dispatch import LookupResult, TracedDispatch
from gdbext.model.sections.trace_section import OpenDispatch, OpenThread
from gdbext.probes.places.call_proof import CallProof, Relation, relation

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.trace.sink import Sink
    from gdbext.live.trace.trace_request import TraceRequest
    from gdbext.live.trace.traced_operators import TracedOperators
    from gdbext.probes.bpf.place_program import TracePlace
    from gdbext.probes.dispatch_tracer import DispatchTracer, SeenDispatch

_FRESH = 1.0
"""Seconds for which what a table says is taken for granted: a kernel may be registered meanwhile."""
_QUIET = 5e5
"""Microseconds without a dispatch after which a thread is said not to have come back."""
_NO_CODE = (0, 0)


class Nesting:
    """Follows every thread. ``count`` dispatches were shown, ``names`` are their operators; ``is_full``: --limit."""

    def __init__(
        self, session: Session, operators: TracedOperators, request: TraceRequest, sink: Sink, started: int,
        places: Sequence[TracePlace],
    ) -> None:  # fmt: skip
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
        self._open: dict[int, list[tuple[int, TracedDispatch]]] = {}
        self.count = 0
        self.names: set[str] = set()
        self.is_full = False
        self.newest = 0.0
        """When the last one that was shown began, in microseconds since the trace did."""
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
            self._end(open_here.pop()[1], now)
        if seen.time < self._begin or not self._wanted(seen.operator):
            return
        found = self._found(seen.place, seen.operator, seen.keyset, seen.time)
        if found is None:
            self.unread += 1
            return
        level = len(open_here) + 1
        dispatch = TracedDispatch(
            found, seen.tid, level, seen.slot + 8, seen.slot, _NO_CODE, seen.returns_to, now, number=self.count + 1
        )
        open_here.append((seen.depth, dispatch))
        if self._request.depth and level > self._request.depth:
            return
        self.count += 1
        self.newest = now
        self._sink.dispatch(dispatch)
        self.is_full = bool(self._request.limit) and self.count >= self._request.limit

    def _has_ended(self, depth: int, outer: TracedDispatch, seen: SeenDispatch) -> bool:
        """``outer`` is over when ``seen`` is made: by the kernel's account, or since it was not made from inside."""
        if depth >= seen.depth:
            return True
        return relation(outer.body, outer.returns_to, seen.slot, seen.place) in self._denied

    def _wanted(self, operator: int) -> bool:
        if self._waiting:
            self._waiting = operator not in self._since
        return not self._waiting and (self._request.everything or self._operators.has(operator))

    def _end(self, dispatch: TracedDispatch, now: float) -> None:
        dispatch.ended = now
        if not self._request.depth or dispatch.depth <= self._request.depth:
            self._sink.ended(dispatch)

    def _found(self, place: int, address: int, keyset: int, when: int) -> LookupResult | None:
        """What the operator's table gives for the keyset; None for what is no operator or no keyset."""
        event = self._places[place].event.value
        key = (address, event, keyset)
        known = self._known.get(key)
        if known is not None and when < known[0]:
            return known[1]
        found = known[1] if known is not None else None
        if found is None or not self._is_current(found):
            try:
                operator = self._describer.operator(address)
                found = self._describer.find(operator, event, keyset) if operator is not None else None
            except GdbextError:
                found = None
        if found is not None:
            self.names.add(found.qualified)
        self._known[key] = (when + _FRESH * 1e9, found)
        return found

    def _is_current(self, found: LookupResult) -> bool:
        try:
            return self._session.target.read(found.table_entry, len(found.table_bytes)) == found.table_bytes
        except GdbextError:  # not any more: the process may be gone
            return True

    # --- the end ---------------------------------------------------------------------------------

    def open(self, tracer: DispatchTracer) -> tuple[OpenThread, ...]:
        """The threads that are still inside of dispatches, and have dispatched nothing for a while."""
        found = []
        now = tracer.drained
        for tid, dispatches in self._open.items():
            if not dispatches or now - dispatches[-1][1].started < _QUIET:
                continue
            alive = tracer.still_open(tid, self._session.target)
            inside = [each for depth, each in dispatches if depth <= alive]
            if inside:
                shown = tuple(
                    OpenDispatch(each.found.event, each.found.qualified, each.found.key, each.last) for each in inside
                )
                found.append(OpenThread(tid, shown, None, ""))
        return tuple(found)


def addresses(session: Session, places: Sequence[TracePlace]) -> dict[int, int]:
    """Number of a place → its absolute address."""
    bases: dict[str, list[tuple[int, int, int]]] = {}
    for module in session.modules.modules:
        if module.image is not None:
            loads = module.image.loads
            bases[module.image.path] = [(load.offset, load.filesz, module.base + load.vaddr) for load in loads]
    found = {}
    for number, place in enumerate(places):
        for start, size, address in bases.get(place.path, ()):
            if start <= place.site.offset < start + size:
                found[number] = address + place.site.offset - start
    return found
