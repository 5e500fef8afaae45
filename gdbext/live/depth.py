"""Which dispatches a thread is inside of, told by stack addresses alone: no stop at a return is needed.

A stack grows down. A function that is called from inside another has its whole frame below the other's; so whatever
does not lie below an earlier dispatch's frame was not called by it: that one has ended, by a return or an exception.
"""

from __future__ import annotations

from gdbext.dispatcher.traced import Dispatch

DEPTH_LIMIT = 100_000
"""Dispatches that one thread is followed into; a runaway recursion overflows the stack long before."""


class Depth:
    """The open dispatches of every thread, outermost first."""

    def __init__(self) -> None:
        self._open: dict[int, list[Dispatch]] = {}

    def stack(self, tid: int) -> list[Dispatch]:
        """The thread's open dispatches; the caller may append."""
        stack = self._open.get(tid)
        if stack is None:
            stack = self._open[tid] = []
        return stack

    def leave(self, tid: int, cfa: int) -> list[Dispatch]:
        """Take off, innermost first, what cannot have called a function whose frame ends at ``cfa``."""
        stack = self.stack(tid)
        gone = []
        while stack and stack[-1].body < cfa:
            gone.append(stack.pop())
        return gone

    def at(self, tid: int, cfa: int) -> Dispatch | None:
        """The open dispatch with that very frame, None without one."""
        for dispatch in reversed(self.stack(tid)):
            if dispatch.cfa >= cfa:
                return dispatch if dispatch.cfa == cfa else None
        return None

    def inside(self, tid: int, dispatch: Dispatch) -> list[Dispatch]:
        """Take off, innermost first, what is open inside ``dispatch``."""
        stack = self.stack(tid)
        gone = []
        while stack and stack[-1] is not dispatch:
            gone.append(stack.pop())
        return gone

    def threads(self) -> dict[int, list[Dispatch]]:
        """Thread id → open dispatches, of threads that have any."""
        return {tid: stack for tid, stack in self._open.items() if stack}
