"""The dispatches of a trace, a thread's outermost one with all that is inside of it at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gdbext.model.dispatch.traced_dispatch import TracedDispatch


class ThreadBatches:
    """Keeps dispatches until the outermost one of their thread has ended; then ``put`` gets them, in order of entry."""

    def __init__(self, put: Callable[[Sequence[TracedDispatch]], None]) -> None:
        self._put = put
        self._pending: dict[int, list[TracedDispatch]] = {}

    def add(self, dispatch: TracedDispatch) -> None:
        """A dispatch begins."""
        self._pending.setdefault(dispatch.tid, []).append(dispatch)

    def ended(self, dispatch: TracedDispatch) -> None:
        """A dispatch is over. Raises what ``put`` does."""
        pending = self._pending.get(dispatch.tid)
        if pending and pending[0] is dispatch:
            self._put(self._pending.pop(dispatch.tid))

    def close(self) -> None:
        """What is still open ends with the trace. Raises what ``put`` does."""
        for tid in list(self._pending):
            self._put(self._pending.pop(tid))
