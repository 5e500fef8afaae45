"""Which collective, send or recv the threads of a rank wait in."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.model.threads.collective_wait import CollectiveWait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.torch.python_names import DISTRIBUTED_FILE, POINT_TO_POINT, UNNUMBERED

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.sections.collectives_section import Collective, CollectivesSection, ProcessGroup
    from gdbext.waits.recognise import State
    from gdbext.waits.snapshot import ProcessSnapshot, ThreadSnapshot

_ON_DEVICES = ("nccl", "xccl", "hccl")
"""How the names of backends begin whose operations run on a device, not in a thread."""
_DEPTH = 12
"""Innermost Python frames among which a send or recv is looked for."""


def name_collectives(
    session: Session, process: ProcessSnapshot, states: MutableMapping[int, State | None]
) -> CollectivesSection | None:
    """What the process knows of its job; the waits in ``states`` get to know what they are for."""
    from gdbext.inspection.job.collectives import before_torch, read_collectives

    if not session.has_torch:
        return before_torch(session)
    try:
        section = read_collectives(session)
    except GdbextError as error:
        session.errors.note(error, "collectives")
        return None
    for thread in process.threads:
        state = states[thread.tid]
        if state is None or state.wait is None or state.wait.collective is not None:
            continue
        if state.wait.kind is WaitKind.COLLECTIVE:
            found = _point_to_point(session, thread, section) or _unnumbered(thread, section)
            found = found or _oldest(thread, section) or _one_end(thread, state.wait.resource.name)
        else:
            found = _on_device(section) if state.wait.kind is WaitKind.DEVICE else None
        states[thread.tid] = state._replace(wait=state.wait._replace(collective=found))
    return section


def _on_device(section: CollectivesSection) -> CollectiveWait | None:
    """The oldest operation that a device has to finish, whichever thread issued it: a backward pass has threads of its
    own."""
    pending = [(group, each) for group in section.groups for each in group.pending if _runs_on_device(group, each)]
    found = _wait_for(pending)
    return found._replace(on_device=True) if found is not None else None


def _runs_on_device(group: ProcessGroup, operation: Collective) -> bool:
    backend = operation.backend or group.backend or ""
    return backend.startswith(_ON_DEVICES)


def _wait_for(pending: Sequence[tuple[ProcessGroup, Collective]]) -> CollectiveWait | None:
    """The wait for the oldest of these."""
    if not pending:
        return None
    group, first = max(pending, key=lambda each: each[1].age_ms or 0)
    if first.peer is not None:
        return CollectiveWait(first.op, group=group.label, peer=first.peer)
    return CollectiveWait(first.op, first.seq, group.label, group.last_enqueued, group.last_completed)


def _oldest(thread: ThreadSnapshot, section: CollectivesSection) -> CollectiveWait | None:
    """The oldest operation that this thread issued and that has not ended.

    Threads are compared by their kernel's name, which is what the recorder keeps for people; where no name fits or the
    groups do not know who issued what, there is no telling them apart, and a thread without Python runs no program.
    """
    if not thread.python:
        return None
    pending = [(group, each) for group in section.groups for each in group.pending]
    return _wait_for([each for each in pending if each[1].thread in ("", thread.name)] or pending)


def _point_to_point(session: Session, thread: ThreadSnapshot, section: CollectivesSection) -> CollectiveWait | None:
    """The send or recv whose Python function is on the stack: its arguments name the other end."""
    from gdbext.cpython.threads.slots import locals_of

    runtime, table = session.python, session.python_threads
    if runtime is None or table is None:
        return None
    for state in table.states.get(thread.tid, ()):
        for frame in runtime.frames.stack(state).frames[:_DEPTH]:
            names = POINT_TO_POINT.get(frame.function) if frame.file.endswith(DISTRIBUTED_FILE) else None
            if names is None:
                continue
            try:
                found = locals_of(runtime, frame)
                numbers = [_integer(session, found.get(name, 0)) for name in names]
            except GdbextError:
                continue
            peer = numbers[0] if numbers[0] is not None else _in_job(numbers[1], section.groups)
            return CollectiveWait(frame.function, peer=peer, tag=_integer(session, found.get("tag", 0)))
    return None


def _unnumbered(thread: ThreadSnapshot, section: CollectivesSection) -> CollectiveWait | None:
    """An operation of all ranks that has no number. Its group is known where there is but one."""
    for frame in thread.python[:_DEPTH]:
        if frame.function in UNNUMBERED and frame.file is not None and frame.file.endswith(DISTRIBUTED_FILE):
            group = section.groups[0].label if len(section.groups) == 1 else ""
            return CollectiveWait(frame.function, group=group)
    return None


def _one_end(thread: ThreadSnapshot, function: str | None) -> CollectiveWait | None:
    """The wait for an isend or irecv of a program: gloo records neither it nor its other end."""
    ends = {"waitRecv": "recv", "waitSend": "send"}
    op = ends.get((function or "").rpartition("::")[2])
    return CollectiveWait(op) if op is not None and thread.python else None


def _integer(session: Session, address: int) -> int | None:
    try:
        return session.python.objects.integer(address) if session.python is not None and address else None
    except GdbextError:  # None, of which most arguments are
        return None


def _in_job(rank: int | None, groups: tuple[ProcessGroup, ...]) -> int | None:
    """A rank of the only group as a rank of the job; of one among several groups nobody knows which it is."""
    if rank is None or len(groups) != 1 or rank >= len(groups[0].ranks):
        return None
    return groups[0].ranks[rank]
