"""The dispatches of a trace as bars that never cross, in whole nanoseconds, and how much of each is its own time.

A viewer drops a bar that begins inside another one and ends after it, be it by a tenth of a microsecond. So every bar
ends with the one around it at the latest, and where the next one on its level begins.

The end of a dispatch is not always seen. By probes it is over when its thread makes the next one that is not inside of
it: that bounds it, save for the last one inside of another, which may have ended long before. Such a bar is drawn as
far as it is known to have lasted, to the last thing that was seen inside of it; the time after that is that of the one
around it. What is still open at the end of the trace lasts until then, as far as anybody knows. Neither counts in sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gdbext.live.dispatch_description import TracedDispatch
from gdbext.tools.probes.flame_files import FlameStacks, SpeedscopeProfiles


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


class _Open:
    """One bar while it is put together."""

    def __init__(self, dispatch: TracedDispatch, start: int, until: int, parent: _Open | None, at: int) -> None:
        self.dispatch, self.start, self.until, self.parent, self.at = dispatch, start, until, parent, at
        self.inside: list[_Open] = []
        self.newest = start
        self.end, self.is_end_seen = until, dispatch.ended is not None

    def finish(self) -> None:
        """Find the end; those inside are finished, and those on its level are bounded."""
        last = bool(self.parent and self.until >= self.parent.until)
        if not self.dispatch.returned and self.dispatch.ended is not None and last:
            self.is_end_seen = False
            self.end = max((self.start, *(each.end for each in self.inside)))
        self.end = max(self.start, self.end)

    def bar(self) -> Bar:
        """The bar with its own time; finish() was called."""
        own = self.end - self.start - sum(each.end - each.start for each in self.inside)
        parent = self.parent.at if self.parent else None
        until = self.end if self.is_end_seen else max(self.end, self.until)
        return Bar(self.dispatch, self.start, self.end, until, self.is_end_seen, own, parent, self._kernel())

    def _kernel(self) -> tuple[int, int] | None:
        """The kernel's time: all that is inside of the dispatch is inside of it."""
        began, ended = self.dispatch.kernel_started, self.dispatch.kernel_ended
        if began is None:
            return None
        start = min((nanoseconds(began), *(each.start for each in self.inside[:1])))
        end = self.end if ended is None else max((nanoseconds(ended), *(each.end for each in self.inside[-1:])))
        start = min(max(start, self.start), self.end)
        return start, max(start, min(end, self.end))


def nanoseconds(microseconds: float) -> int:
    """A time of a trace in whole nanoseconds."""
    return round(microseconds * 1000)


class ThreadBars:
    """The bars of one batch after another; ``now`` gives the end of the trace in microseconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ends: dict[int, int] = {}

    def of(self, dispatches: Sequence[TracedDispatch]) -> list[Bar]:
        """The bars of dispatches of one thread, in order of entry, after those of its batches before."""
        tid = dispatches[0].tid
        found = bars(dispatches, self._now(), self._ends.get(tid, 0))
        self._ends[tid] = max(bar.until for bar in found)
        return found


def bars(dispatches: Sequence[TracedDispatch], now: float, earliest: int = 0) -> list[Bar]:
    """The bars of one thread's dispatches, which are in order of entry; none begins before ``earliest``. ``now`` is the
    end of the trace in microseconds."""
    open_now: list[_Open] = []
    found: list[_Open] = []
    latest, after_all = earliest, nanoseconds(now)
    for dispatch in dispatches:
        latest = max(latest, nanoseconds(dispatch.started))
        while open_now and open_now[-1].dispatch.depth >= dispatch.depth:
            before = open_now.pop()
            before.until = max(before.start, min(before.until, latest))
        parent = open_now[-1] if open_now else None
        until = max(latest, after_all if dispatch.ended is None else nanoseconds(dispatch.ended))
        each = _Open(dispatch, latest, until, parent, len(found))
        if parent:
            parent.inside.append(each)
        open_now.append(each)
        found.append(each)
    for each in reversed(found):
        each.until = max(each.until, each.newest)
        if each.parent:  # what is around it lasted until then at least
            each.parent.newest = max(each.parent.newest, each.newest)
    for each in found:  # those around first
        if each.parent:
            each.until = max(each.start, min(each.until, each.parent.until))
        each.end = each.until
    for each in reversed(found):  # those inside first
        each.finish()
    return [each.bar() for each in found]


class FlameTrace:
    """A trace as stacks with the time that each had for itself (``collapsed``), or as profiles of speedscope, one for
    each thread. Written when the trace is over; ``now`` gives the time of its end."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        pid: int,
        now: Callable[[], float],
        name: Callable[[int], str],
        speedscope: bool,
    ) -> None:
        self._write = write
        self._bars = ThreadBars(now)
        self._name = name
        self._batches = ThreadBatches(self._put)
        self._stacks = None if speedscope else FlameStacks()
        self._profiles = SpeedscopeProfiles(f"process {pid}") if speedscope else None

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """Nothing: a bar begins at its lookup."""

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """Kept until the thread's outermost dispatch has ended."""
        self._batches.add(dispatch)

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """Nothing: steps of a dispatch have no bars."""

    def ended(self, dispatch: TracedDispatch) -> None:
        """Take the bars that are complete now, with all inside."""
        self._batches.ended(dispatch)

    def close(self) -> None:
        """Write the file with all that was kept."""
        self._batches.close()
        if self._stacks:
            self._write(self._stacks.text().encode())
        elif self._profiles:
            self._write(self._profiles.text().encode())

    def _put(self, dispatches: Sequence[TracedDispatch]) -> None:
        found = self._bars.of(dispatches)
        thread = self._name(dispatches[0].tid)
        if self._stacks:
            stacks: list[tuple[str, ...]] = []
            for bar in found:
                stacks.append((*(stacks[bar.parent] if bar.parent is not None else (thread,)), _frame(bar)))
                if bar.is_end_seen:
                    self._stacks.add(stacks[-1], bar.own)
        elif self._profiles:
            self._profiles.add(thread, ((_frame(bar), bar.start, bar.end, bar.dispatch.depth) for bar in found))


def _frame(bar: Bar) -> str:
    found = bar.dispatch.found
    return f"{found.qualified} [{found.event.value} {found.key}]"
