"""Where a trace goes."""

from __future__ import annotations

from typing import Protocol

from gdbext.model.dispatch.traced_dispatch import TracedDispatch


class Sink(Protocol):
    """Where a trace goes. Everything may raise OSError."""

    def entry(self, tid: int, depth: int, event: str, name: str) -> None:
        """The operator's function was entered; there is no keyset yet."""

    def dispatch(self, dispatch: TracedDispatch) -> None:
        """A lookup."""

    def step(self, dispatch: TracedDispatch, word: str, text: str) -> None:
        """A step inside a dispatch: "enter", "boxed", "meta", "impl", "return" …"""

    def ended(self, dispatch: TracedDispatch) -> None:
        """The dispatch is over; ``dispatch.returned`` says whether that was seen."""

    def close(self) -> None:
        """The trace is over. Dispatches that did not end have ``ended`` None."""
