"""Which redispatches pass the out-of-line lookup, too, and would be counted twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gdbext.errors import MemoryFault
from gdbext.probes.dispatch_counter import DispatchCount
from gdbext.torch.stack.call_arguments import follow_stub
from gdbext.torch.symbols import DISPATCHER_REDISPATCH, LOOKUP

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.probes.places import RedispatchPlace

_FUNCTION_LIMIT = 1 << 16
"""Bytes of a function that are decoded."""


def without_doubles(
    counts: Iterable[DispatchCount], places: Iterable[RedispatchPlace], session: Session
) -> list[DispatchCount]:
    """The counts, those of lookups without the redispatches that made them.

    A redispatch whose code calls the lookup makes exactly one, with the same keyset in the same thread.
    """
    by_operator = {place.operator.address: place for place in places}
    callers = LookupCallers(session)
    doubled: dict[tuple[int, int | None, int], int] = {}
    for count in counts:
        place = by_operator.get(count.entry)
        if count.event == "redispatch" and place is not None and callers.calls_lookup(place.address):
            doubled[count.entry, count.keyset, count.tid] = count.times
    return [_single(count, doubled) for count in counts if _single(count, doubled).times > 0]


def _single(count: DispatchCount, doubled: dict[tuple[int, int | None, int], int]) -> DispatchCount:
    if count.event != "call":
        return count
    return count._replace(times=count.times - doubled.get((count.entry, count.keyset, count.tid), 0))


class LookupCallers:
    """Looks into the code of functions; each one once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, bool] = {}

    def calls_lookup(self, address: int, inner: bool = True) -> bool:
        """The function there calls ``OperatorEntry::lookup``, with ``inner`` also by ``Dispatcher::redispatch``."""
        known = self._known.get(address)
        if known is None:
            called = list(self._called(address))
            known = any(LOOKUP.begins(name) for _, name in called)
            if not known and inner:
                outer = (each for each, name in called if DISPATCHER_REDISPATCH.begins(name))
                known = any(self.calls_lookup(each, False) for each in outer)
            self._known[address] = known
        return known

    def _called(self, address: int) -> Iterable[tuple[int, str]]:
        """(address, first name) of what the function calls or jumps to."""
        function = self._session.symbolizer.function(address)
        if function is None:
            return
        memory = self._session.memory
        try:
            code = memory.read(function.start, min(function.size, _FUNCTION_LIMIT))
        except MemoryFault:
            return
        targets = {one.target for one in memory.architecture.decode(code, function.start) if one.target is not None}
        for target in targets:
            if function.start <= target < function.start + function.size:
                continue
            called = follow_stub(memory, target)
            names = self._session.symbolizer.names_at(called) if called is not None else ()
            if called is not None and names:
                yield called, names[0]
