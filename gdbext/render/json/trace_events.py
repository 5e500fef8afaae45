"""The events of a trace as JSON: for a document, or one object a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gdbext.model.dispatch.traced_dispatch import TracedDispatch


class JsonTrace:
    """Every dispatch, step and end as it happens, as an object."""

    def __init__(self, put: Callable[[dict[str, Any]], None]) -> None:
        self._put = put

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """``{"step": "entry"}``."""
        self._put({"step": "entry", "tid": tid, "depth": depth, "event": event, "op": name})

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """``{"step": "dispatch"}`` with everything that is known."""
        self._put({"step": "dispatch", **dispatch_document(dispatch)})

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """A step of a dispatch, which ``number`` names."""
        self._put({"step": word, "tid": dispatch.tid, "number": dispatch.number, "text": text})

    def ended(self, dispatch: TracedDispatch) -> None:
        """``{"step": "end"}``."""
        self._put({"step": "end", "tid": dispatch.tid, "number": dispatch.number, "returned": dispatch.returned})

    def close(self) -> None:
        """Nothing is kept back."""


def json_lines(write: Callable[[bytes], None]) -> Callable[[dict[str, Any]], None]:
    """What writes objects a line each, at once, so that the last one before a hang is there."""
    import json

    return lambda document: write(json.dumps(document).encode() + b"\n")


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
