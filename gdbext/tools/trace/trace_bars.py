"""The receivers of a trace, and its dispatches as bars that never cross, in whole nanoseconds.

A viewer drops a bar that begins inside another one and ends after it, be it by a tenth of a microsecond. So every bar
ends with the one around it at the latest, and where the next one on its level begins.

The end of a dispatch is not always seen. By probes it is over when its thread makes the next one that is not inside of
it: that bounds it, save for the last one inside of another, which may have ended long before. Such a bar is drawn as
far as it is known to have lasted, to the last thing that was seen inside of it; the time after that belongs to the one
around it. What is still open at the end of the trace lasts until then, as far as is known. Neither counts in sums.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gdbext.live.dispatch_description import TracedDispatch
from gdbext.tools.probes.flame_files import FlameStacks, SpeedscopeProfiles


class TraceSink:
    """The receiver of a trace; methods that are not overridden do nothing. Everything may raise OSError."""

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """The operator's function was entered; there is no keyset yet."""

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """A dispatch began with its lookup."""

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """A step inside a dispatch: "enter", "boxed", "meta", "impl", "return" …"""

    def ended(self, dispatch: TracedDispatch) -> None:
        """The dispatch is over; ``dispatch.returned`` says whether that was seen."""

    def close(self) -> None:
        """The trace is over. Dispatches that did not end have ``ended`` None."""


class Bar(NamedTuple):
    """One dispatch in time. All times are nanoseconds since the trace began."""

    dispatch: TracedDispatch
    start: int
    end: int
    """The time until which it is known to have lasted."""
    until: int
    """Not after this; ``end`` where its end was seen."""
    is_end_seen: bool
    own: int
    """The part of it in which nothing inside of it is known to have run."""
    parent: int | None
    """The position of the one around it."""
    kernel: tuple[int, int] | None
    """Its kernel's time, where that was seen."""

    @property
    def lasted(self) -> int:
        """The time from its start to its end, as far as that is known."""
        return self.end - self.start


class _OpenBar:
    """One bar while it is put together; ``position`` among the thread's bars."""

    def __init__(
        self, dispatch: TracedDispatch, start: int, until: int, parent: _OpenBar | None, position: int
    ) -> None:
        self.dispatch, self.start, self.until, self.parent, self.position = dispatch, start, until, parent, position
        self.inside: list[_OpenBar] = []
        self.newest = start
        self.end, self.is_end_seen = until, dispatch.ended is not None

    def finish(self) -> None:
        """Find the end; those inside are finished, and those on its level are bounded."""
        is_last = bool(self.parent and self.until >= self.parent.until)
        if not self.dispatch.returned and self.dispatch.ended is not None and is_last:
            self.is_end_seen = False
            self.end = max((self.start, *(inner.end for inner in self.inside)))
        self.end = max(self.start, self.end)

    def bar(self) -> Bar:
        """The bar with its own time; finish() was called."""
        own = self.end - self.start - sum(inner.end - inner.start for inner in self.inside)
        parent = self.parent.position if self.parent else None
        until = self.end if self.is_end_seen else max(self.end, self.until)
        kernel = None
        began, ended = self.dispatch.kernel_started, self.dispatch.kernel_ended
        if began is not None:  # all that is inside of the dispatch is inside of its kernel
            start = min((_nanoseconds(began), *(inner.start for inner in self.inside[:1])))
            end = self.end if ended is None else max((_nanoseconds(ended), *(inner.end for inner in self.inside[-1:])))
            start = min(max(start, self.start), self.end)
            kernel = start, max(start, min(end, self.end))
        return Bar(self.dispatch, self.start, self.end, until, self.is_end_seen, own, parent, kernel)


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def bars(dispatches: Sequence[TracedDispatch], now: float, earliest: int = 0) -> list[Bar]:
    """The bars of one thread's dispatches, which are in order of entry; none begins before ``earliest``. ``now`` is the
    end of the trace in microseconds."""
    open_now: list[_OpenBar] = []
    made: list[_OpenBar] = []
    latest, end_of_trace = earliest, _nanoseconds(now)
    for dispatch in dispatches:
        latest = max(latest, _nanoseconds(dispatch.started))
        while open_now and open_now[-1].dispatch.depth >= dispatch.depth:
            before = open_now.pop()
            before.until = max(before.start, min(before.until, latest))
        parent = open_now[-1] if open_now else None
        until = max(latest, end_of_trace if dispatch.ended is None else _nanoseconds(dispatch.ended))
        bar = _OpenBar(dispatch, latest, until, parent, len(made))
        if parent:
            parent.inside.append(bar)
        open_now.append(bar)
        made.append(bar)
    for bar in reversed(made):
        bar.until = max(bar.until, bar.newest)
        if bar.parent:  # what is around it lasted until then at least
            bar.parent.newest = max(bar.parent.newest, bar.newest)
    for bar in made:  # those around first
        if bar.parent:
            bar.until = max(bar.start, min(bar.until, bar.parent.until))
        bar.end = bar.until
    for bar in reversed(made):  # those inside first
        bar.finish()
    return [bar.bar() for bar in made]


class BarTrace(TraceSink):
    """A trace that is written as bars: those of a thread's outermost dispatch, and of all inside, once it has ended."""

    def __init__(self, write: Callable[[bytes], None], now: Callable[[], float]) -> None:
        """``now`` gives the end of the trace in microseconds."""
        self.write = write
        self._now = now
        self._pending: dict[int, list[TracedDispatch]] = {}
        self._ends: dict[int, int] = {}
        """Thread → the end of its last bar."""

    @abstractmethod
    def put(self, bars: Sequence[Bar]) -> None:
        """Write the bars of one outermost dispatch, in order of entry."""

    def dispatch(self, dispatch: TracedDispatch) -> None:
        self._pending.setdefault(dispatch.tid, []).append(dispatch)

    def ended(self, dispatch: TracedDispatch) -> None:
        pending = self._pending.get(dispatch.tid)
        if pending and pending[0] is dispatch:
            self._put_thread(dispatch.tid)

    def close(self) -> None:
        """Write the rest: what is still open ends with the trace."""
        for tid in list(self._pending):
            self._put_thread(tid)

    def _put_thread(self, tid: int) -> None:
        complete = bars(self._pending.pop(tid), self._now(), self._ends.get(tid, 0))
        self._ends[tid] = max(bar.until for bar in complete)
        self.put(complete)


class FlameTrace(BarTrace):
    """A trace as stacks with the time that each had for itself (``collapsed``), or as profiles of speedscope, one for
    each thread. Written when the trace is over."""

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
        def frame(bar: Bar) -> str:
            lookup = bar.dispatch.lookup
            return f"{lookup.qualified} [{lookup.event.value} {lookup.key}]"

        thread = self._name(bars[0].dispatch.tid)
        if self._profiles:
            self._profiles.add(thread, ((frame(bar), bar.start, bar.end, bar.dispatch.depth) for bar in bars))
            return
        stacks: list[tuple[str, ...]] = []
        for bar in bars:
            stacks.append((*(stacks[bar.parent] if bar.parent is not None else (thread,)), frame(bar)))
            if bar.is_end_seen:
                self._stacks.add(stacks[-1], bar.own)
