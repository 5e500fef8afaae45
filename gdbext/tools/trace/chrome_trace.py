"""A trace in Chrome's format (chrome://tracing, Perfetto): complete events, times in microseconds.

Format: "Trace Event Format" (the Chromium project's document), phase "X". A thread's events are written when its
outermost dispatch has ended, in order of entry.

The events of a trace as JSON: for a document, or one object a line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from gdbext.engine.terminal import shown_json
from gdbext.hosts.resume.dispatch_description import TracedDispatch
from gdbext.tools.trace.timeline_page import ThreadBatches


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

    def __init__(self, write: Callable[[bytes], None], pid: int, now: Callable[[], float]) -> None:
        self._write = write
        self._pid = pid
        self._now = now
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
        now = self._now()
        for dispatch in dispatches:
            for event in events_of(dispatch, self._pid, now):
                self._write((b"\n" if self._first else b",\n") + shown_json(json.dumps(event)).encode())
                self._first = False


def events_of(dispatch: TracedDispatch, pid: int, now: float) -> list[dict[str, Any]]:
    """The dispatch and, where its kernel was seen to be entered, the kernel."""
    found = dispatch.found
    ended = now if dispatch.ended is None else dispatch.ended
    args = {
        "overload": found.overload,
        "keyset": {"bits": f"{found.bits:#x}", "keys": list(found.keys)},
        "key": found.key,
        "table_index": found.table_index,
        "kernel": found.kernel or None,
        "boxed": not found.unboxed,
        "returned": dispatch.returned,
    }
    events = [_event(dispatch, pid, found.op, found.event, dispatch.started, ended, args)]
    if dispatch.kernel_started is not None:
        until = ended if dispatch.kernel_ended is None else dispatch.kernel_ended
        args = {**args, "returned": dispatch.left}
        events.append(_event(dispatch, pid, found.kernel, "kernel", dispatch.kernel_started, until, args))
    return events


def _event(
    dispatch: TracedDispatch, pid: int, name: str, category: str, start: float, end: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "ts": round(start, 1),
        "dur": round(max(0.0, end - start), 1),
        "pid": pid,
        "tid": dispatch.tid,
        "name": name,
        "cat": category,
        "args": args,
    }
