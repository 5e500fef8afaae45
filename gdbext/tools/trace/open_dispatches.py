"""Tells of dispatches that had not come back when a trace ended: which step was the last, and what that means.

Which dispatches a thread is inside of, by its stack at each stop: no stop at a return is needed.

A function that is called from inside another has its whole frame below the other's. What does not was not called by
it: that one has ended, by a return or an exception. What does lie below is walked
(engine/unwind/caller_check.py) to be sure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.engine.unwind.caller_check import CallerCheck, CallerWalk
from gdbext.errors import GdbextError
from gdbext.hosts.resume.dispatch_description import TracedDispatch
from gdbext.tools.trace.trace_section import InnermostStep, OpenDispatch, OpenThread
from gdbext.torch.stack.dispatch_frame import DispatchFrame, DispatchStage

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.targets.base_target import TargetThread
    from gdbext.hosts.resume.host import RunControl

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
            caller = CallerCheck(top.cfa, *top.code, top.returns_to, top.is_open)
            if top.body >= cfa and self._callers.inside(pc, cfa, caller):
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


MEANINGS = {
    DispatchStage.ENTERING: "it is entering the dispatcher: the operator's handle is not ready, no lookup was made",
    DispatchStage.LOOKUP: "it is looking up the kernel: the dispatch table was not left, no kernel was found yet",
    DispatchStage.INVOKING: "the kernel was found and is being called, but was not entered: it is between dispatcher "
    "and kernel (boxing, or profiler callbacks)",
    DispatchStage.IN_KERNEL: "the kernel was entered and has not returned: it is inside the kernel itself, or in what "
    "that calls",
}
"""Meanings by the stage of dispatch-bt's innermost step; after the table "Where to look" of the print-based
procedure."""


def open_threads(control: RunControl, threads: Mapping[int, Sequence[TracedDispatch]]) -> tuple[OpenThread, ...]:
    """The dispatches that are still on each thread's stack, with the innermost step and its meaning."""
    if not threads:
        return ()
    try:
        session = control.session()
        stopped = {thread.tid: thread for thread in session.target.threads()}
    except GdbextError:
        return ()
    found = [_of_thread(session, stopped[tid], dispatches) for tid, dispatches in threads.items() if tid in stopped]
    return tuple(each for each in found if each is not None)


def _of_thread(session: Session, thread: TargetThread, dispatches: Sequence[TracedDispatch]) -> OpenThread | None:
    try:
        snapshot = session.threads.of(thread)
    except GdbextError:
        return None
    frames = {frame.cfa for frame in snapshot.frames}
    alive = [
        OpenDispatch(one.found.event, one.found.qualified, one.found.key, one.last)
        for one in dispatches
        if one.cfa in frames
    ]
    if not alive:
        return None
    innermost = snapshot.dispatch[0] if snapshot.dispatch else None
    meaning = MEANINGS[innermost.stage] if innermost is not None else ""
    return OpenThread(thread.tid, tuple(alive), None if innermost is None else _step(innermost), meaning)


def _step(step: DispatchFrame) -> InnermostStep:
    kernel = step.kernel.function if step.kernel is not None else None
    return InnermostStep(step.event, step.qualified, step.key, step.stage, kernel)
