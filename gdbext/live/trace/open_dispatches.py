"""What had not come back when a trace ended: which step was the last, and what that means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.model.dispatch.dispatch_frame import DispatchFrame, DispatchStage
from gdbext.model.sections.trace_section import InnermostStep, OpenDispatch, OpenThread

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.run_control import RunControl
    from gdbext.model.dispatch.traced_dispatch import TracedDispatch
    from gdbext.targets.base import Thread

MEANINGS = {
    DispatchStage.ENTERING: "it is entering the dispatcher: the operator's handle is not ready, no lookup was made",
    DispatchStage.LOOKUP: "it is looking up the kernel: the dispatch table was not left, no kernel was found yet",
    DispatchStage.INVOKING: "the kernel was found and is being called, but was not entered: it is between dispatcher "
    "and kernel (boxing, or profiler callbacks)",
    DispatchStage.IN_KERNEL: "the kernel was entered and has not returned: it is inside the kernel itself, or in what "
    "that calls",
}
"""By the stage of dispatch-bt's innermost step; after the table "Where to look" of the print-based procedure."""


def open_threads(control: RunControl, threads: Mapping[int, Sequence[TracedDispatch]]) -> tuple[OpenThread, ...]:
    """For each thread with dispatches that are still on its stack: those, the innermost step and its meaning."""
    if not threads:
        return ()
    try:
        session = control.session()
        stopped = {thread.tid: thread for thread in session.target.threads()}
    except GdbextError:
        return ()
    found = [_of_thread(session, stopped[tid], dispatches) for tid, dispatches in threads.items() if tid in stopped]
    return tuple(each for each in found if each is not None)


def _of_thread(session: Session, thread: Thread, dispatches: Sequence[TracedDispatch]) -> OpenThread | None:
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
