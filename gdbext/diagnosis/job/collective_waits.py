"""Tells of threads that wait for other ranks, or for a device, which operation of which group they wait in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.job.collectives import before_torch, group_reader, read_collectives
from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait_detail import NO_ERROR, OtherRanks, RaisedError, Sleep
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.clauses import listed
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import RPC_AGENT
from gdbext.torch.distributed.awaited_ranks import rank_of_worker, waiting_transfer, worker_that_owes
from gdbext.torch.distributed.python_calls import absent_workers, group_argument, store_meeting
from gdbext.torch.torch_symbol import (
    DISTRIBUTED_FILE,
    POINT_TO_POINT,
    RPC_ASYNC,
    RPC_CALL,
    RPC_CALLS,
    RPC_FETCH,
    RPC_FILE,
    RPC_WORKER,
    UNNUMBERED,
)
from gdbext.torch.values.containers import string_reader

if TYPE_CHECKING:
    from gdbext.cpython.objects.py_ref import PyRef
    from gdbext.diagnosis.job.collectives_section import CollectivesSection
    from gdbext.diagnosis.report.thread_report import ThreadReport
    from gdbext.diagnosis.report.wait import Wait
    from gdbext.diagnosis.report.wait_detail import WaitDetail
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.torch.distributed.process_groups import Collective, ProcessGroup

_ON_DEVICES = ("nccl", "xccl", "hccl")
"""Beginnings of the names of backends whose operations run on a device, not in a thread."""
_SHOWN = 8
_FETCHES = "6toHere"
"""The function of UserRRef and PyRRef that gets a remote reference's value (torch/csrc/distributed/rpc/rref_impl.h)."""
_DEPTH = 12
"""Innermost Python frames among which a send or recv is looked for."""


def name_collectives(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]
) -> tuple[Sequence[ThreadReport], CollectivesSection | None]:
    """The reports, in the snapshots' order, whose waits name the operation that they are for; and the process's
    knowledge of its job."""
    if not session.has_torch:
        return threads, before_torch(session)
    try:
        section = read_collectives(session)
    except GdbextError as error:
        session.errors.note(error, "collectives")
        return threads, None
    named = [
        thread.with_wait(_named(session, snapshot, thread.wait, section)) if thread.wait else thread
        for snapshot, thread in zip(process.threads, threads)
    ]
    return _with_shared_groups(session, process, named), section


def _named(session: Session, thread: ThreadSnapshot, wait: Wait, section: CollectivesSection) -> Wait:
    """The wait with the operation of the other ranks that it is for, and the exception that is handled meanwhile."""
    store = wait.detail.collective
    kind, name, found = wait.kind, wait.name, _meeting_at_store(session, thread, wait) or store
    is_meeting = found is not store
    absent = _absent_workers(session, thread) if kind is WaitKind.CONDVAR and not found else ""
    if absent:
        kind, name = WaitKind.COLLECTIVE, absent
    elif not found:
        found = _operation(session, thread, wait, section)
    if found and (is_meeting or (not store and found.op in RPC_CALLS)):
        kind, name = WaitKind.COLLECTIVE, found.op
    if not found and kind is not WaitKind.COLLECTIVE:
        return wait
    handling = _handling(thread) if kind is WaitKind.COLLECTIVE else NO_ERROR
    return wait._replace(
        resource=Resource(kind, wait.address, name, wait.resource.variable),
        timed=wait.timed and not is_meeting,
        detail=OtherRanks(found, _meeting(wait) if is_meeting else _below(wait), handling),
    )


def _below(wait: Wait) -> WaitDetail:
    """The wait by which a thread waits for other ranks."""
    return wait.detail.below if isinstance(wait.detail, OtherRanks) else wait.detail


def _meeting(wait: Wait) -> WaitDetail:
    """The wait below a meeting: a sleep between two tries is not that of a loop of the program's own."""
    below = _below(wait)
    return Sleep(seconds=below.seconds) if isinstance(below, Sleep) else below


def _operation(
    session: Session, thread: ThreadSnapshot, wait: Wait, section: CollectivesSection
) -> CollectiveWait | None:
    """The operation that a wait of this kind may be for."""
    if wait.kind is WaitKind.COLLECTIVE:
        found = _point_to_point(session, thread, section) or _unnumbered(thread, section)
        return found or _one_end(session, thread, wait.name, section) or _oldest(thread, section)
    if wait.kind is WaitKind.DEVICE:
        return _on_device(section)
    return _remote_call(session, thread) if wait.kind is WaitKind.CONDVAR else None


_MEETS = (WaitKind.SLEEP, WaitKind.IO, WaitKind.COLLECTIVE)
"""Waits of a thread that makes the store, or connects to it: between two tries it sleeps."""


def _meeting_at_store(session: Session, thread: ThreadSnapshot, wait: Wait) -> CollectiveWait | None:
    """The meeting of all ranks at the store that a thread is in, with who is missing; None for any other."""
    if wait.kind not in _MEETS:
        return None
    found = store_meeting(session.python_threads.frames(thread.tid))
    store = wait.detail.collective
    is_waiting = store is not None and store.is_store
    if not found or not (is_waiting or found.rank):
        return None
    op = store.op if store else ""
    return CollectiveWait(op, is_store=True, server=found.server, rank=found.rank, size=found.size)


def _with_shared_groups(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]
) -> Sequence[ThreadReport]:
    """The reports, with the other threads that use the same group at the same time."""
    groups: dict[PyRef, list[tuple[ThreadReport, Wait, CollectiveWait]]] = {}
    for snapshot, thread in zip(process.threads, threads):
        wait = thread.wait
        if not wait or wait.kind is not WaitKind.COLLECTIVE:
            continue
        known, group = wait.detail.collective, group_argument(session.python_threads.frames(snapshot.tid))
        if known and group is not None and not known.is_store and known.peer is None:
            groups.setdefault(group, []).append((thread, wait, known))
    shared: dict[int, ThreadReport] = {}
    for users in groups.values():
        for thread, wait, known in users if len(users) > 1 else ():
            names = [f"{each.python_name or each.name} (tid {each.tid})" for each, *_ in users if each is not thread]
            collective = known._replace(also_in=listed(names, _SHOWN))
            detail = OtherRanks(collective, _below(wait), wait.detail.handling)
            shared[thread.tid] = thread.with_wait(wait.with_detail(detail))
    return [shared.get(thread.tid, thread) for thread in threads]


def _handling(thread: ThreadSnapshot) -> RaisedError:
    """The exception that the thread handles meanwhile."""
    view = thread.process.python
    found = view.handled_error(thread.tid) if view else None
    return RaisedError(found.text) if found else NO_ERROR


def _absent_workers(session: Session, thread: ThreadSnapshot) -> str:
    """The wait in rpc.shutdown with the names of the workers that have not called it; "" for any other."""
    if not any(frame.file.endswith(RPC_FILE) for frame in thread.python[:_DEPTH]):
        return ""
    names = absent_workers(session.python_threads.frames(thread.tid))
    has = "has" if len(names) == 1 else "have"
    return f"rpc.shutdown, which {listed(names, _SHOWN)} {has} not called" if names else ""


def _on_device(section: CollectivesSection) -> CollectiveWait | None:
    """The oldest operation that a device has to finish, whichever thread issued it: a backward pass has threads of its
    own."""
    pending = [(group, each) for group in section.groups for each in group.pending if _runs_on_device(group, each)]
    return _wait_for(pending, on_device=True)


def _runs_on_device(group: ProcessGroup, operation: Collective) -> bool:
    backend = operation.backend or group.backend or ""
    return backend.startswith(_ON_DEVICES)


def _wait_for(pending: Sequence[tuple[ProcessGroup, Collective]], on_device: bool = False) -> CollectiveWait | None:
    """The wait for the oldest of these."""
    if not pending:
        return None
    group, first = max(pending, key=lambda each: each[1].age_ms or 0)
    if first.peer is not None:
        return CollectiveWait(first.op, group=group.label, peer=first.peer, on_device=on_device)
    last = group.last_enqueued, group.last_completed
    return CollectiveWait(first.op, first.seq, group.label, *last, on_device=on_device)


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
    stack = session.python_threads.frames(thread.tid)
    for frame in stack[:_DEPTH]:
        names = POINT_TO_POINT.get(frame.function) if frame.file.endswith(DISTRIBUTED_FILE) else None
        if not names:
            continue
        given = stack.locals(frame)
        if given.fault:
            continue
        rank, group_rank = (given[name].int() for name in names)
        peer = rank if rank is not None else _in_job(group_rank, section.groups)
        from_any = peer is None and all(not given[name] or given[name].is_none for name in names)
        group = section.groups[0].label if from_any and len(section.groups) == 1 else ""
        return CollectiveWait(frame.function, group=group, peer=peer, tag=given["tag"].int(), from_any=from_any)
    return None


def _remote_call(session: Session, thread: ThreadSnapshot) -> CollectiveWait | None:
    """The call of another rank's worker whose answer is waited for."""
    stack = session.python_threads.frames(thread.tid).innermost(_DEPTH)
    if any(frame.function == RPC_CALL and frame.file.endswith(RPC_FILE) for frame in stack):
        return CollectiveWait(RPC_CALL, peer=_worker(session, stack.locals_of(RPC_CALL, RPC_FILE)[RPC_WORKER]))
    return _owed_answer(session, thread)


def _owed_answer(session: Session, thread: ThreadSnapshot) -> CollectiveWait | None:
    """The wait for a future that another rank's answer ends; None for any other."""
    agent, call = RPC_AGENT.address(session.symbolizer), thread.syscall
    if not agent or not call or call.name != "futex" or not thread.python:
        return None
    reader = group_reader(session)
    peer = worker_that_owes(session.memory, reader.class_of, agent, call.arguments[0])
    functions = (thread.stack.function(level) for level in range(min(_DEPTH, len(thread.frames))))
    fetches = any(function and _FETCHES in function.name for function in functions)
    return None if peer is None else CollectiveWait(RPC_FETCH if fetches else RPC_ASYNC, peer=peer)


def _worker(session: Session, named: PyRef) -> int | None:
    """The rank of a worker, which a program names by that or by a string; None where it does so by an object."""
    rank, agent = named.int(), RPC_AGENT.address(session.symbolizer)
    if rank is not None or not agent or not named:
        return rank
    strings = string_reader(session.memory, session.layout)
    return rank_of_worker(session.memory, strings, agent, named.str())


def _unnumbered(thread: ThreadSnapshot, section: CollectivesSection) -> CollectiveWait | None:
    """An operation of all ranks that has no number. Its group is known where there is but one."""
    for frame in thread.python[:_DEPTH]:
        if frame.function in UNNUMBERED and frame.file.endswith(DISTRIBUTED_FILE):
            group = section.groups[0].label if len(section.groups) == 1 else ""
            return CollectiveWait(frame.function, group=group)
    return None


def _one_end(
    session: Session, thread: ThreadSnapshot, function: str | None, section: CollectivesSection
) -> CollectiveWait | None:
    """The wait for an isend or irecv of a program: what it waits for is in gloo's own tables."""
    ends = {"waitRecv": "recv", "waitSend": "send"}
    op = ends.get((function or "").rpartition("::")[2])
    if op is None or not thread.python:
        return None
    call = thread.syscall
    if not call or call.name != "futex":
        return CollectiveWait(op)
    reader = group_reader(session)
    found = waiting_transfer(session.memory, reader.class_of, call.arguments[0])
    if not found:
        return CollectiveWait(op)
    alike = {group.ranks for group in section.groups if (group.rank, group.size) == (found.rank, found.size)}
    peers = {ranks[found.peer] for ranks in alike if found.peer < len(ranks)}
    return CollectiveWait(op, peer=peers.pop() if len(peers) == 1 else None, tag=found.tag)


def _in_job(rank: int | None, groups: tuple[ProcessGroup, ...]) -> int | None:
    """A rank of the only group as a rank of the job; of one among several groups nobody knows which it is."""
    if rank is None or len(groups) != 1 or rank >= len(groups[0].ranks):
        return None
    return groups[0].ranks[rank]
