"""Which dispatches a thread is inside of, by its stack at each stop: no stop at a return is needed.

A function that is called from inside another has its whole frame below the other's. What does not was not called by
it: that one has ended, by a return or an exception. What does lie below is walked (unwind/caller_check.py) to be sure.
"""

from __future__ import annotations

from gdbext.model.dispatch.traced_dispatch import TracedDispatch
from gdbext.unwind.caller_check import CallerCheck, CallerWalk

DEPTH_LIMIT = 100_000
"""Dispatches that one thread is followed into; a runaway recursion overflows the stack long before."""


class Depth:
    """The open dispatches of every thread, outermost first."""

    def __init__(self, callers: CallerWalk) -> None:
        self._callers = callers
        self._open: dict[int, list[TracedDispatch]] = {}

    def stack(self, tid: int) -> list[TracedDispatch]:
        """The thread's open dispatches; the caller may append."""
        stack = self._open.get(tid)
        if stack is None:
            stack = self._open[tid] = []
        return stack

    def leave(self, tid: int, pc: int, cfa: int) -> list[TracedDispatch]:
        """Take off, innermost first, what did not call the frame of code ``pc`` that ends at ``cfa``.

        Raises MemoryFault.
        """
        stack = self.stack(tid)
        gone = []
        while stack:
            top = stack[-1]
            if top.body >= cfa and self._callers.inside(pc, cfa, CallerCheck(top.cfa, *top.code, top.returns_to)):
                break
            gone.append(stack.pop())
        return gone

    def at(self, tid: int, cfa: int) -> TracedDispatch | None:
        """The open dispatch with that very frame, None without one."""
        for dispatch in reversed(self.stack(tid)):
            if dispatch.cfa >= cfa:
                return dispatch if dispatch.cfa == cfa else None
        return None

    def inside(self, tid: int, dispatch: TracedDispatch) -> list[TracedDispatch]:
        """Take off, innermost first, what is open inside ``dispatch``."""
        stack = self.stack(tid)
        gone = []
        while stack and stack[-1] is not dispatch:
            gone.append(stack.pop())
        return gone

    def threads(self) -> dict[int, list[TracedDispatch]]:
        """Thread id → open dispatches, of threads that have any."""
        return {tid: stack for tid, stack in self._open.items() if stack}
