"""Adds the collective operation and its group to waits for other ranks, or for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.diagnosis.job.collectives import collectives_without_torch, group_reader, read_collectives
from gdbext.diagnosis.job.mpi_waits import with_mpi_call
from gdbext.diagnosis.job.store_keys import with_setters
from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.wait_detail import NO_ERROR, OtherRanks, RaisedError, Sleep
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
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

_SHOWN = 8
"""Most names in a list."""
_DEPTH = 12
"""Innermost Python frames that are searched for a call of torch.distributed."""


def name_collectives(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]
) -> tuple[Sequence[ThreadReport], CollectivesSection | None]:
    """(the reports, in the snapshots' order, with collectives named in waits; the section, None if unreadable)."""
    threads = [
        thread._replace(wait=with_mpi_call(session, snapshot, thread.wait)) if thread.wait else thread
        for snapshot, thread in zip(process.threads, threads)
    ]
    if not session.has_torch:
        return threads, collectives_without_torch(session)
    try:
        section = read_collectives(session)
    except GdbextError as error:
        session.errors.note(error, "collectives")
        return threads, None
    named = [
        thread._replace(wait=_with_operation(session, snapshot, thread.wait, section)) if thread.wait else thread
        for snapshot, thread in zip(process.threads, threads)
    ]
    return _with_group_users(session, process, named), section


def _with_operation(session: Session, thread: ThreadSnapshot, wait: Wait, section: CollectivesSection) -> Wait:
    """The wait with its collective and the exception that the thread handles; unchanged if it waits for no rank."""
    if wait.detail.named:
        return wait
    store = wait.detail.collective
    meeting = _meeting_at_store(session, thread, wait)
    kind, name, collective = wait.kind, wait.name, meeting or store
    absent = ""
    if kind is WaitKind.CONDVAR and not collective:
        # rpc.shutdown waits for the workers that have not called it.
        in_rpc = any(frame.file.endswith(RPC_FILE) for frame in thread.python[:_DEPTH])
        workers = absent_workers(session.python_threads.frames(thread.tid)) if in_rpc else ()
        has = "has" if len(workers) == 1 else "have"
        absent = f"rpc.shutdown, which {listed(workers, _SHOWN)} {has} not called" if workers else ""
    if absent:
        kind, name = WaitKind.COLLECTIVE, absent
    elif collective and collective.is_mpi:
        return wait
    elif not collective and kind is WaitKind.COLLECTIVE:
        collective = _awaited_operation(session, thread, wait.name, section)
    elif not collective and kind is WaitKind.DEVICE:
        # The oldest operation that a device has to finish, whichever thread issued it: a backward pass has its own.
        on_devices = ("nccl", "xccl", "hccl")
        pending = [
            (group, operation)
            for group in section.groups
            for operation in group.pending
            if (operation.backend or group.backend or "").startswith(on_devices)
        ]
        collective = _wait_for_oldest(pending, on_device=True)
    elif not collective and kind is WaitKind.CONDVAR:
        collective = _remote_call(session, thread)
    if collective and collective.is_store and not meeting:
        collective = with_setters(thread, session.python_threads.frames(thread.tid), collective, section)
    if collective and (meeting or (not store and collective.op in RPC_CALLS)):
        kind, name = WaitKind.COLLECTIVE, collective.op
    if not collective and kind is not WaitKind.COLLECTIVE:
        return wait
    error = thread.process.python.handled_error(thread.tid) if kind is WaitKind.COLLECTIVE else None
    below = _underlying_detail(wait)
    if meeting and isinstance(below, Sleep):  # a sleep between two tries is not that of a loop of the program's own
        below = Sleep(seconds=below.seconds)
    return wait._replace(
        resource=Resource(kind, wait.address, name, wait.resource.variable),
        timed=wait.timed and not meeting,
        detail=OtherRanks(collective, below, RaisedError(error.text) if error else NO_ERROR),
    )


def _underlying_detail(wait: Wait) -> WaitDetail:
    """The detail of the call in which the thread waits for other ranks."""
    return wait.detail.below if isinstance(wait.detail, OtherRanks) else wait.detail


def _meeting_at_store(session: Session, thread: ThreadSnapshot, wait: Wait) -> CollectiveWait | None:
    """The wait for all ranks to join at the store; None for any other wait."""
    # A thread that makes the store, or connects to it, sleeps between two tries.
    if wait.kind not in (WaitKind.SLEEP, WaitKind.IO, WaitKind.COLLECTIVE):
        return None
    meeting = store_meeting(session.python_threads.frames(thread.tid))
    store = wait.detail.collective
    if not meeting or not ((store and store.is_store) or meeting.rank):
        return None
    op = store.op if store else ""
    return CollectiveWait(op, is_store=True, server=meeting.server, rank=meeting.rank, size=meeting.size)


def _with_group_users(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]
) -> Sequence[ThreadReport]:
    """The reports; collective waits name the other threads that wait in operations of the same group."""
    groups: dict[PyRef, list[tuple[ThreadReport, Wait, CollectiveWait]]] = {}
    for snapshot, thread in zip(process.threads, threads):
        wait = thread.wait
        if not wait or wait.kind is not WaitKind.COLLECTIVE:
            continue
        collective, group = wait.detail.collective, group_argument(session.python_threads.frames(snapshot.tid))
        if collective and group is not None and not collective.is_store and collective.peer is None:
            groups.setdefault(group, []).append((thread, wait, collective))
    shared: dict[int, ThreadReport] = {}
    for users in groups.values():
        if len(users) == 1:
            continue
        for thread, wait, collective in users:
            names = [user.label for user, *_ in users if user is not thread]
            collective = collective._replace(also_in=listed(names, _SHOWN))
            detail = OtherRanks(collective, _underlying_detail(wait), wait.detail.handling)
            shared[thread.tid] = thread._replace(wait=wait.with_detail(detail))
    return [shared.get(thread.tid, thread) for thread in threads]


def _awaited_operation(
    session: Session, thread: ThreadSnapshot, function: str, section: CollectivesSection
) -> CollectiveWait | None:
    """The operation that a thread in ``function`` of a backend waits for."""
    transfer = _point_to_point(session, thread, section)
    if transfer:
        return transfer
    for frame in thread.python[:_DEPTH]:  # an operation of all ranks that has no number
        if frame.function in UNNUMBERED and frame.file.endswith(DISTRIBUTED_FILE):
            group = section.groups[0].label if len(section.groups) == 1 else ""
            return CollectiveWait(frame.function, group=group)
    if not thread.python:
        return None  # it runs no program
    # The oldest operation that this thread issued and that is not completed. Threads are compared by their kernel's
    # name, which is what the recorder keeps; if no name fits, or the groups do not know the issuer, any may be it.
    pending = [(group, operation) for group in section.groups for operation in group.pending]
    own = [row for row in pending if row[1].thread in ("", thread.name)]
    return _transfer(session, thread, function, section) or _wait_for_oldest(own or pending)


def _wait_for_oldest(
    pending: Sequence[tuple[ProcessGroup, Collective]], on_device: bool = False
) -> CollectiveWait | None:
    """The wait for the oldest of these operations, None if there are none; ``on_device``: a device executes it."""
    if not pending:
        return None
    group, first = max(pending, key=lambda row: row[1].age_ms or 0)
    if first.peer is not None:
        return CollectiveWait(first.op, group=group.label, peer=first.peer, on_device=on_device)
    last = group.last_enqueued, group.last_completed
    return CollectiveWait(first.op, first.seq, group.label, *last, on_device=on_device)


def _point_to_point(session: Session, thread: ThreadSnapshot, section: CollectivesSection) -> CollectiveWait | None:
    """The send or recv whose Python function is on the stack: its arguments name the other end."""
    stack = session.python_threads.frames(thread.tid)
    only = section.groups[0] if len(section.groups) == 1 else None
    for frame in stack[:_DEPTH]:
        names = POINT_TO_POINT.get(frame.function) if frame.file.endswith(DISTRIBUTED_FILE) else None
        arguments = stack.locals(frame) if names else None
        if not names or arguments is None or arguments.fault:
            continue
        peer, group_rank = (arguments[name].int() for name in names)
        if peer is None and group_rank is not None and only and group_rank < len(only.ranks):
            peer = only.ranks[group_rank]  # of several groups it is unknown which one is meant
        from_any = peer is None and all(not arguments[name] or arguments[name].is_none for name in names)
        group = only.label if from_any and only else ""
        return CollectiveWait(frame.function, group=group, peer=peer, tag=arguments["tag"].int(), from_any=from_any)
    return None


def _remote_call(session: Session, thread: ThreadSnapshot) -> CollectiveWait | None:
    """The wait for the answer of an RPC worker, directly or by a future; None for any other wait."""
    stack = session.python_threads.frames(thread.tid).innermost(_DEPTH)
    agent = RPC_AGENT.address(session.symbolizer)
    if any(frame.function == RPC_CALL and frame.file.endswith(RPC_FILE) for frame in stack):
        # A program names a worker by its rank, a string or an object; of an object the rank is unknown.
        worker = stack.locals_of(RPC_CALL, RPC_FILE)[RPC_WORKER]
        rank = worker.int()
        if rank is None and agent and worker:
            strings = string_reader(session.memory, session.layout)
            rank = rank_of_worker(session.memory, strings, agent, worker.str())
        return CollectiveWait(RPC_CALL, peer=rank)
    call = thread.syscall
    if not agent or not call or call.name != "futex" or not thread.python:
        return None
    peer = worker_that_owes(session.memory, group_reader(session).class_of, agent, call.arguments[0])
    functions = (thread.stack.function(level) for level in range(min(_DEPTH, len(thread.frames))))
    # UserRRef and PyRRef get a remote reference's value by toHere (torch/csrc/distributed/rpc/rref_impl.h).
    fetches = any(function and "6toHere" in function.name for function in functions)
    return None if peer is None else CollectiveWait(RPC_FETCH if fetches else RPC_ASYNC, peer=peer)


def _transfer(
    session: Session, thread: ThreadSnapshot, function: str, section: CollectivesSection
) -> CollectiveWait | None:
    """The wait for an isend or irecv of a program, by gloo's own tables; None in any other function."""
    op = {"waitRecv": "recv", "waitSend": "send"}.get(function.rpartition("::")[2])
    if op is None:
        return None
    call = thread.syscall
    in_futex = call is not None and call.name == "futex"
    reader = group_reader(session) if in_futex else None
    transfer = waiting_transfer(session.memory, reader.class_of, call.arguments[0]) if call and reader else None
    if not transfer:
        return CollectiveWait(op)
    alike = {group.ranks for group in section.groups if (group.rank, group.size) == (transfer.rank, transfer.size)}
    peers = {ranks[transfer.peer] for ranks in alike if transfer.peer < len(ranks)}
    return CollectiveWait(op, peer=peers.pop() if len(peers) == 1 else None, tag=transfer.tag)
