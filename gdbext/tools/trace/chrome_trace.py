"""A trace in Chrome's format (chrome://tracing, Perfetto): complete events, times in microseconds.

Format: "Trace Event Format" (the Chromium project's document), phase "X", and "M" for the names of process and
threads. A thread's events are written when its outermost dispatch has ended, in order of entry. They never cross:
trace_bars.py. Perfetto makes nanoseconds of the times and drops what is behind the point (CoerceToTs,
src/trace_processor/importers/json/json_utils.cc), so each number is one that gives the nanosecond that is meant.

The events of a trace as JSON: for a document, or one object a line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from gdbext.engine.terminal import shown_json
from gdbext.hosts.resume.dispatch_description import TracedDispatch
from gdbext.render.style import escape
from gdbext.tools.trace.trace_bars import Bar, ThreadBars, ThreadBatches


class JsonTrace:
    """Every dispatch, step and end as it happens, as an object."""

    def __init__(self, put: Callable[[dict[str, Any]], None]) -> None:
        self._put = put

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """The line of an entry: ``{"step": "entry"}``."""
        self._put({"step": "entry", "tid": tid, "depth": depth, "event": event, "op": name})

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """``{"step": "dispatch"}`` with everything that is known."""
        self._put({"step": "dispatch", **dispatch_document(dispatch)})

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """A step of a dispatch, which ``number`` names."""
        self._put({"step": word, "tid": dispatch.tid, "number": dispatch.number, "text": text})

    def ended(self, dispatch: TracedDispatch) -> None:
        """The line of an end: ``{"step": "end"}``."""
        self._put({"step": "end", "tid": dispatch.tid, "number": dispatch.number, "returned": dispatch.returned})

    def close(self) -> None:
        """Close; nothing was kept back."""


def json_lines(write: Callable[[bytes], None]) -> Callable[[dict[str, Any]], None]:
    """A writer of objects, a line each, at once, so that the last one before a hang is there."""
    import json

    return lambda document: write(shown_json(json.dumps(document)).encode() + b"\n")


def dispatch_document(dispatch: TracedDispatch) -> dict[str, Any]:
    """A dispatch as plain values; names as in the contract's STEP."""
    found = dispatch.found
    return {
        "number": dispatch.number,
        "tid": dispatch.tid,
        "depth": dispatch.depth,
        "event": found.event,
        "op": found.op,
        "overload": found.overload,
        "keyset": {"bits": f"{found.bits:#x}", "keys": list(found.keys)},
        "key": found.key,
        "table_index": found.table_index,
        "kernel": {
            "function": found.kernel or None,
            "valid": found.valid,
            "boxed": found.boxed,
            "unboxed": found.unboxed,
            "fallthrough": found.fallthrough,
            "registered_at": found.registered_at or None,
            "path": found.path or None,
        },
    }


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
            self._event(_name("process_name", self._pid, self._pid, f"process {self._pid}"))
        if tid not in self._named:
            self._named.add(tid)
            self._event(_name("thread_name", self._pid, tid, self._names(tid)))

    def _event(self, event: dict[str, Any]) -> None:
        self._write((b"\n" if self._first else b",\n") + shown_json(json.dumps(event)).encode())
        self._first = False


def _name(what: str, pid: int, tid: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": escape(text)}}


def events_of(bar: Bar, pid: int) -> list[dict[str, Any]]:
    """The dispatch and, where its kernel was seen to be entered, the kernel."""
    dispatch, found = bar.dispatch, bar.dispatch.found
    args = {
        "overload": found.overload,
        "keyset": {"bits": f"{found.bits:#x}", "keys": list(found.keys)},
        "key": found.key,
        "table_index": found.table_index,
        "kernel": found.kernel or None,
        "boxed": not found.unboxed,
        "returned": dispatch.returned,
        **({} if bar.is_end_seen else {"end": "not seen", "at_most_us": (bar.until - bar.start) / 1e3}),
    }
    events = [_complete(dispatch.tid, pid, found.op, found.event, bar.start, bar.end, args)]
    if bar.kernel is not None:
        args = {**args, "returned": dispatch.left}
        events.append(_complete(dispatch.tid, pid, found.kernel, "kernel", *bar.kernel, args))
    return events


def _complete(
    tid: int, pid: int, name: str, category: str, start: int, end: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "ts": exact_microseconds(start),
        "dur": exact_microseconds(end - start),
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": category,
        "args": args,
    }


def exact_microseconds(nanoseconds: int) -> float:
    """The number of microseconds that is not under the nanosecond when it is multiplied by 1000."""
    found = nanoseconds / 1000
    return found if int(found * 1000) == nanoseconds else math.nextafter(found, math.inf)
