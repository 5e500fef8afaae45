"""A thread as it is reported: its snapshot, what it waits for, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.inspection.threads.stack_merge import merged_frames
from gdbext.model.threads.thread_report import RunState, ThreadReport

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.dispatch.dispatch_frame import DispatchFrame
    from gdbext.model.dispatch.dispatch_state import DispatchState
    from gdbext.model.threads.frame import Frame
    from gdbext.model.threads.wait import Resource
    from gdbext.targets.base import Thread
    from gdbext.waits.recognise import State
    from gdbext.waits.snapshot import ThreadSnapshot

_COMPARED = 200
"""Innermost frames that make two stacks equal; deeper ones differ only in recursions."""


def report_thread(
    snapshot: ThreadSnapshot,
    state: State | None = None,
    holds: Sequence[Resource] = (),
    frames: Sequence[Frame] = (),
    dispatch: Sequence[DispatchFrame] | None = None,
) -> ThreadReport:
    """``state``: None where the wait is not asked for or not known; ``dispatch``: instead of the snapshot's."""
    return ThreadReport(
        tid=snapshot.tid,
        name=snapshot.name,
        python_name=snapshot.python_name,
        number=snapshot.number,
        signal=snapshot.signal.name if snapshot.signal else None,
        state=state.state if state is not None else _bare_state(snapshot),
        wait=state.wait if state is not None else None,
        holds=tuple(holds),
        dispatch=tuple(snapshot.dispatch if dispatch is None else dispatch),
        unseen_dispatch=snapshot.unseen_dispatch,
        frames=tuple(frames),
        python=tuple(snapshot.python),
        frame_count=len(snapshot.frames),
        notes=tuple(snapshot.notes),
        pool=state.pool if state is not None else None,
        stack_key=_stack_key(snapshot) if state is not None else 0,
    )


def report_stack(session: Session, thread: Thread, native: bool, explained: bool) -> ThreadReport:
    """A thread without its wait; ``native``: with every frame, ``explained``: with why each key won.

    Raises TargetError where its registers cannot be read.
    """
    snapshot = session.threads.of(thread)
    frames = all_frames(session, snapshot) if native else ()
    if not explained or session.dispatcher_error is not None:
        return report_thread(snapshot, frames=frames)
    from gdbext.torch.stack.keyset_explanation import KeySetExplanation

    reader = session.dispatch_stacks
    explanation = KeySetExplanation(session.memory, reader.sites, session.tensors, session.dispatcher)
    return report_thread(snapshot, frames=frames, dispatch=explanation.explained(snapshot.stack, snapshot.dispatch))


def report_dispatch_state(session: Session, thread: Thread, state: DispatchState) -> ThreadReport:
    """A thread with the state of dispatch that was read of it, and nothing else."""
    python = session.python_threads
    return ThreadReport(
        tid=thread.tid,
        name=thread.name,
        python_name=python.names.get(thread.tid) if python is not None else None,
        number=thread.number,
        signal=thread.signal.name if thread.signal else None,
        tls=state,
    )


def all_frames(session: Session, snapshot: ThreadSnapshot) -> tuple[Frame, ...]:
    """Native and Python frames of a thread; with the role that each plays in the dispatcher, where there is torch."""
    roles = session.dispatch_stacks.roles(snapshot.stack) if session.has_torch else ()
    frames = merged_frames(snapshot.stack, snapshot.python, roles)
    if session.has_torch and any(frame.function.startswith("kernel") for frame in frames):
        from gdbext.inspection.generated_frames import named_kernels

        return named_kernels(session, frames)
    return frames


def _bare_state(snapshot: ThreadSnapshot) -> RunState:
    """Whether it is blocked in the kernel is all that is known."""
    return RunState.WAITING if snapshot.syscall else RunState.RUNNING


def _stack_key(snapshot: ThreadSnapshot) -> int:
    frames = snapshot.frames
    return hash(tuple(frame.pc for frame in frames[:_COMPARED])) if frames else 0
