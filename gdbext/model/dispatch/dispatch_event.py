"""DispatchEvent: how code entered the dispatcher."""

from __future__ import annotations

from enum import Enum


class DispatchEvent(Enum):
    """The method of c10::Dispatcher (aten/src/ATen/core/dispatch/Dispatcher.h); the value is its name."""

    CALL = "call"
    REDISPATCH = "redispatch"
    CALL_BOXED = "callBoxed"
    REDISPATCH_BOXED = "redispatchBoxed"

    @property
    def is_redispatch(self) -> bool:
        """A kernel goes on with a keyset of its own choice."""
        return self in (DispatchEvent.REDISPATCH, DispatchEvent.REDISPATCH_BOXED)
