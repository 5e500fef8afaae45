"""Reads a process's knowledge of its job: groups, sequence numbers and pending collectives, and which of these its
threads wait in.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, MutableMapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.diagnosis.job.collectives_section import (
    Collective,
    CollectivesSection,
    CollectivesSource,
    JobRank,
    ProcessGroup,
)
from gdbext.diagnosis.job.job_rank import environment, from_environment
from gdbext.diagnosis.report.wait import CollectiveWait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.sentences import listed
from gdbext.engine.record import Record
from gdbext.engine.targets.system.linux import number
from gdbext.errors import GdbextError
from gdbext.torch.assumed_symbols import RPC_AGENT
from gdbext.torch.distributed import flight_recorder
from gdbext.torch.distributed.gloo_transfers import rank_of_worker, waiting_transfer, worker_that_owes
from gdbext.torch.distributed.group_structures import ProcessGroupStruct
from gdbext.torch.distributed.nccl_communicators import Communicator, CommunicatorReader, release_of
from gdbext.torch.distributed.process_groups import GroupObject, ProcessGroupReader, QueuedWork, store_address
from gdbext.torch.distributed.python_calls import absent_workers, given_rank, group_argument
from gdbext.torch.torch_symbol import (
    DISTRIBUTED_FILE,
    POINT_TO_POINT,
    RPC_ASYNC,
    RPC_CALL,
    RPC_CALLS,
    RPC_FETCH,
    RPC_FILE,
    RPC_WORKER,
    TORCH_FILES,
    UNNUMBERED,
)
from gdbext.torch.values.containers import string_reader
from gdbext.torch.values.value_text import python_name

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.diagnosis.job.collectives_section import Collective, CollectivesSection, ProcessGroup
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.recognise import State
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot

RECENT = 8
"""Operations of each group that are kept besides the pending ones, to match them over ranks."""
PENDING_LIMIT = 256
Issued = tuple[flight_recorder.FlightRecorder, flight_recorder.RecordedEntry]
_WORLD = "0"
"""The name that torch.distributed gives to the first group, which is the whole job."""


def recorders_of(session: Session) -> list[flight_recorder.FlightRecorder]:
    """The flight recorders that record. Raises NotTorch, LayoutError, MemoryFault."""
    memory, symbolizer, layout = session.memory, session.symbolizer, session.layout
    found = flight_recorder.find_recorders(memory, symbolizer)
    try:
        found += flight_recorder.find_recorders_of_hooks(memory, symbolizer, layout)
    except GdbextError as error:
        session.errors.note(error, "flight recorder")
    recorders = [flight_recorder.FlightRecorder(memory, layout, address) for address in found]
    return [recorder for recorder in recorders if recorder.is_enabled]


def read_collectives(session: Session) -> CollectivesSection:
    """Everything; what cannot be read is in the session's errors. Raises NotTorch, LayoutError."""
    layout = session.layout
    recorded, groups = _Recorded(session), known_groups(session)
    names = _names(groups.objects, recorded)
    found = [recorded.group(name, groups.objects.get(name), groups) for name in names]
    store = next((group.store for group in found if group.store), None)
    source = None
    if found:
        source = CollectivesSource.FLIGHT_RECORDER if recorded.recorders else CollectivesSource.PROCESS_GROUP
    elif not layout.has_struct(ProcessGroupStruct.OF):
        session.errors.note(_unknown_layout(layout.id), "collectives")
    identity = _identity(session, found)
    return CollectivesSection(source, identity, tuple(found), store or _rendezvous(session))


def before_torch(session: Session) -> CollectivesSection:
    """The facts that the environment tells of a rank that has not loaded torch yet."""
    return CollectivesSection(None, from_environment(session), (), _rendezvous(session))


def _unknown_layout(layout: str) -> GdbextError:
    return GdbextError(
        f"layout {layout} does not have the structures of torch.distributed",
        why="it was measured before they were, or the headers of this build lack them",
        help="measure it again: scripts/dispatch measure /path/to/site-packages/torch",
    )


class KnownGroups(Record):
    """Group objects by name, and what reads more of them."""

    reader: ProcessGroupReader | None
    objects: dict[str, GroupObject]


def known_groups(session: Session) -> KnownGroups:
    """The groups that torch.distributed keeps; none without Python."""
    if session.python is None:
        return KnownGroups(None, {})
    try:
        reader = ProcessGroupReader(session.memory, session.layout, session.symbolizer, session.python)
        objects = {group.name: group for group in reader.groups()}
    except GdbextError as error:
        session.errors.note(error, "process groups")
        return KnownGroups(None, {})
    for problem in reader.problems:
        session.errors.note(problem, "process groups")
    return KnownGroups(reader, objects)


def _names(objects: Iterable[str], recorded: _Recorded) -> list[str]:
    """All groups that anybody knows, the job's own first. Gloo describes its groups before they have their names."""
    names = dict.fromkeys([*objects, *recorded.described, *recorded.entries])
    return sorted((name for name in names if name), key=lambda name: name != _WORLD)


class _Recorded:
    """The contents of the recorders, by group."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._now, self._steady = _clock(session, time.CLOCK_REALTIME), _clock(session, time.CLOCK_MONOTONIC)
        self._statuses: dict[str, flight_recorder.GroupStatus] = {}
        self._nccl = _Communicators(session)
        self.recorders: list[flight_recorder.FlightRecorder] = []
        self.described: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.entries: dict[str, list[tuple[flight_recorder.FlightRecorder, flight_recorder.RecordedEntry]]] = {}
        try:
            self.recorders = recorders_of(session)
        except GdbextError as error:
            session.errors.note(error, "flight recorder")
        for recorder in self.recorders:
            try:
                self._read(recorder)
            except GdbextError as error:
                session.errors.note(error, "flight recorder")

    def _read(self, recorder: flight_recorder.FlightRecorder) -> None:
        statuses = recorder.statuses()
        for (name, description), ranks in recorder.groups().items():
            self.described[name] = (description, ranks)
        for entry in recorder.entries():
            self.entries.setdefault(entry.group, []).append((recorder, entry))
            if entry.pg_id in statuses:
                self._statuses[entry.group] = statuses[entry.pg_id]
        for problem in recorder.problems:
            self._session.errors.note(problem, "flight recorder")

    def group(self, name: str, known: GroupObject | None, groups: KnownGroups) -> ProcessGroup:
        """One group, from the recorder and from the group itself."""
        description, ranks = self.described.get(name, ("", ()))
        entries = self.entries.get(name, [])
        status = self._statuses.get(name) or (known.status if known is not None else None)
        ranks = ranks or (known.ranks if known is not None else ())
        return ProcessGroup(
            name=name,
            description=description or (known.description if known is not None else ""),
            backend=known.backend if known is not None else _backend(entries),
            rank=known.rank if known is not None else None,
            size=known.size if known is not None else len(ranks) or None,
            ranks=tuple(ranks),
            last_enqueued=_number(status.enqueued) if status is not None else None,
            last_started=_number(status.started) if status is not None else None,
            last_completed=_number(status.completed) if status is not None else None,
            pending=tuple(self._pending(entries, known, ranks)),
            recent=tuple(self._collective(*each, ranks) for each in entries[-RECENT:]),
            store=self._store(known, groups),
            communicators=self._nccl.of(known) if known is not None else (),
        )

    def _pending(
        self, entries: Sequence[Issued], known: GroupObject | None, ranks: Sequence[int]
    ) -> Iterable[Collective]:
        if self.recorders:
            return [self._collective(*each, ranks) for each in entries if each[1].is_pending][:PENDING_LIMIT]
        return [_queued(work, self._steady) for work in (known.queued if known is not None else ())]

    def _collective(
        self, recorder: flight_recorder.FlightRecorder, entry: flight_recorder.RecordedEntry, ranks: Sequence[int]
    ) -> Collective:
        """``ranks``: the members of its group, by their ranks in it."""
        file, line = self._line(recorder, entry) if entry.is_pending else (None, None)
        op, peer = transfer_of(entry.profiling_name.partition(":")[2] or entry.profiling_name)
        return Collective(
            seq=entry.p2p_seq if entry.is_p2p else entry.collective_seq,
            op=op,
            state=entry.state if entry.is_pending else "completed",
            sizes=entry.input_sizes,
            dtypes=tuple(map(python_name, entry.input_dtypes)),
            output_sizes=entry.output_sizes,
            output_dtypes=tuple(map(python_name, entry.output_dtypes)),
            is_p2p=entry.is_p2p,
            peer=ranks[peer] if peer is not None and peer < len(ranks) else None,
            age_ms=max(0, (self._now - entry.created) // 1_000_000) if self._now is not None else None,
            timeout_ms=entry.timeout_ms,
            thread=entry.thread_name,
            backend=entry.profiling_name.rpartition(":")[0],
            file=file,
            line=line,
        )

    def _line(
        self, recorder: flight_recorder.FlightRecorder, entry: flight_recorder.RecordedEntry
    ) -> tuple[str | None, int | None]:
        """The user's line: the innermost frame outside of torch, else the innermost one."""
        frames = traceback_lines(self._session, recorder, entry)
        user = next((place for place in frames if TORCH_FILES not in place[1]), None)
        found = user or next(iter(frames), None)
        return (found[1], found[2]) if found is not None else (None, None)

    def _store(self, known: GroupObject | None, groups: KnownGroups) -> str | None:
        if known is None or not known.store or groups.reader is None:
            return None
        return store_address(self._session.memory, self._session.layout, groups.reader, known.store)


class _Communicators:
    """NCCL's communicators of a process's groups, where its release of NCCL was measured."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def of(self, group: GroupObject) -> tuple[Communicator, ...]:
        """Those of that group; what cannot be read is in the session's errors."""
        if not group.nccl or group.rank is None or group.size is None:
            return ()
        try:
            reader = self._reader
            found = reader.of_group(group.nccl, group.rank, group.size) if reader is not None else ()
        except GdbextError as error:
            self._session.errors.note(error, "NCCL's communicators")
            return ()
        while reader is not None and reader.problems:  # those of this group: each is said once
            self._session.errors.note(reader.problems.pop(0), "NCCL's communicators")
        return found

    @cached_property
    def _reader(self) -> CommunicatorReader | None:
        """None where this release was not measured, which is said once. Raises LayoutError."""
        from gdbext.known.package_versions import nccl_version

        version = nccl_version(self._session.modules)
        if version is None:
            return None
        release = release_of(version)
        if release is None:
            what = f"the structures of NCCL {version} are not known"
            why = "its communicators and their transfers are not read"
            self._session.errors.note(GdbextError(what, why=why), "NCCL's communicators")
            return None
        return CommunicatorReader(self._session.memory, release)


def traceback_lines(
    session: Session, recorder: flight_recorder.FlightRecorder, entry: flight_recorder.RecordedEntry
) -> list[tuple[str, str, int]]:
    """(function, file, line) of the frames that issued an entry, innermost first. What cannot be read is left out."""
    if session.python is None:
        return []
    found = []
    try:
        for frame in recorder.traceback(entry):
            code = session.python.codes.get(frame.code)
            found.append((code.name, code.file, code.line(frame.offset) or code.first_line))
    except GdbextError as error:
        session.errors.note(error, f"traceback of {entry.profiling_name} #{entry.collective_seq}")
    return found


def transfer_of(op: str) -> tuple[str, int | None]:
    """``recv 0<-1`` of NCCL (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp): the operation and the other end's rank
    in the group; None for any other."""
    name, _, ends = op.partition(" ")
    other = number(ends.rpartition("->" if name == "send" else "<-")[2])
    return (name, other) if name in ("send", "recv") and other is not None else (op, None)


def _queued(work: QueuedWork, now: int | None) -> Collective:
    """A piece of work in a group's own queue, which knows neither sizes nor lines; ``now`` by the steady clock."""
    backend, _, op = work.title.rpartition(":")
    state = "started" if work.in_progress else "scheduled"
    age = None if now is None or work.began is None else max(0, (now - work.began) // 1_000_000)
    return Collective(work.seq, op, state, timeout_ms=work.timeout_ms, age_ms=age, backend=backend)


def _backend(entries: Sequence[Issued]) -> str | None:
    """The backend by the names of its operations: ``gloo:all_reduce``."""
    return next((entry.profiling_name.partition(":")[0] for _, entry in entries if ":" in entry.profiling_name), None)


def _number(sequence: int) -> int | None:
    return None if sequence < 0 else sequence


def _clock(session: Session, which: int) -> int | None:
    """Nanoseconds by that clock of the process; None for a core."""
    seconds = session.procfs.clock(which) if session.procfs is not None else None
    return None if seconds is None else int(seconds * 1e9)


def _identity(session: Session, groups: Sequence[ProcessGroup]) -> JobRank:
    """The whole job's group says it, where there is one; else the environment."""
    known = _as_given(session, from_environment(session))
    world = next((group for group in groups if group.name == _WORLD and group.rank is not None), None)
    if world is None:
        return known
    meeting = (world.store or "").removeprefix("tcp://") or None  # as the environment would name it
    return known._replace(rank=world.rank, size=world.size, job=known.job or meeting)


def _as_given(session: Session, known: JobRank) -> JobRank:
    """The rank with the arguments of init_process_group, where a thread is in it: they count before the environment."""
    table = session.python_threads
    for tid in table.states if table is not None and session.python is not None else ():
        found = given_rank(session.python, table.frames(tid)) if session.python is not None and table else None
        if found is not None:
            meeting = known.job or found.method.partition("://")[2] or None
            return known._replace(rank=found.rank, size=found.size or known.size, job=meeting)
    return known


def _rendezvous(session: Session) -> str | None:
    """The place where the ranks meet, as the environment says."""
    environ = environment(session)
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    return f"tcp://{host}:{port}" if host and port else None


_ON_DEVICES = ("nccl", "xccl", "hccl")
"""Beginnings of the names of backends whose operations run on a device, not in a thread."""
_SHOWN = 8
_FETCHES = "6toHere"
"""The function of UserRRef and PyRRef that gets a remote reference's value (torch/csrc/distributed/rpc/rref_impl.h)."""
_DEPTH = 12
"""Innermost Python frames among which a send or recv is looked for."""


def name_collectives(
    session: Session, process: ProcessSnapshot, states: MutableMapping[int, State | None]
) -> CollectivesSection | None:
    """The process's knowledge of its job; the waits in ``states`` get to know what they are for."""

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
        absent = _absent_workers(session, thread) if state.wait.kind is WaitKind.CONDVAR else ""
        if absent:
            resource = state.wait.resource._replace(kind=WaitKind.COLLECTIVE, name=absent)
            states[thread.tid] = state._replace(wait=state.wait._replace(resource=resource))
            continue
        if state.wait.kind is WaitKind.COLLECTIVE:
            found = _point_to_point(session, thread, section) or _unnumbered(thread, section)
            found = found or _one_end(session, thread, state.wait.resource.name, section) or _oldest(thread, section)
        elif state.wait.kind is WaitKind.DEVICE:
            found = _on_device(section)
        else:
            found = _remote_call(session, thread) if state.wait.kind is WaitKind.CONDVAR else None
        resource = state.wait.resource
        if found is not None and found.op in RPC_CALLS:
            resource = resource._replace(kind=WaitKind.COLLECTIVE, name=found.op)
        states[thread.tid] = state._replace(wait=state.wait._replace(resource=resource, collective=found))
    _name_more(session, process, states)
    return section


def _name_more(session: Session, process: ProcessSnapshot, states: MutableMapping[int, State | None]) -> None:
    """Threads that use one group at the same time, and exceptions that are handled meanwhile."""
    groups: dict[int, list[ThreadSnapshot]] = {}
    for thread in process.threads:
        state = states[thread.tid]
        if state is None or state.wait is None or state.wait.kind is not WaitKind.COLLECTIVE:
            continue
        frames = _frames(session, thread)
        handling = _handling(thread)
        states[thread.tid] = state._replace(wait=state.wait._replace(handling=handling))
        known = state.wait.collective
        group = group_argument(session.python, frames) if session.python is not None else None
        if known is not None and group is not None and not known.is_store and known.peer is None:
            groups.setdefault(group, []).append(thread)
    for users in groups.values():
        for thread in users if len(users) > 1 else ():
            state = states[thread.tid]
            if state is None or state.wait is None or state.wait.collective is None:
                continue
            names = [f"{each.python_name or each.name} (tid {each.tid})" for each in users if each is not thread]
            others = listed(names, _SHOWN)
            collective = state.wait.collective._replace(also_in=others)
            states[thread.tid] = state._replace(wait=state.wait._replace(collective=collective))


def _frames(session: Session, thread: ThreadSnapshot) -> list[PythonFrame]:
    """The Python frames of a thread, with what is needed to read their variables."""
    table = session.python_threads
    return table.frames(thread.tid) if table is not None else []


def _handling(thread: ThreadSnapshot) -> str:
    """The exception that the thread handles meanwhile, in words; "" for none."""
    view = thread.process.python
    found = view.handled_error(thread.tid) if view is not None else None
    return found.text if found is not None else ""


def _absent_workers(session: Session, thread: ThreadSnapshot) -> str:
    """The wait in rpc.shutdown with the names of the workers that have not called it; "" for any other."""
    if session.python is None or not any(frame.file.endswith(RPC_FILE) for frame in thread.python[:_DEPTH]):
        return ""
    names = absent_workers(session.python, _frames(session, thread))
    has = "has" if len(names) == 1 else "have"
    return f"rpc.shutdown, which {listed(names, _SHOWN)} {has} not called" if names else ""


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
    from gdbext.cpython.threads.frame_variables import locals_of

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
            from_any = peer is None and all(_is_none(session, found.get(name, 0)) for name in names)
            group = section.groups[0].label if from_any and len(section.groups) == 1 else ""
            tag = _integer(session, found.get("tag", 0))
            return CollectiveWait(frame.function, group=group, peer=peer, tag=tag, from_any=from_any)
    return None


def _remote_call(session: Session, thread: ThreadSnapshot) -> CollectiveWait | None:
    """The call of another rank's worker whose answer is waited for."""
    from gdbext.cpython.threads.frame_variables import locals_of

    runtime, table = session.python, session.python_threads
    if runtime is None or table is None:
        return None
    for frame in table.frames(thread.tid)[:_DEPTH]:
        if frame.function == RPC_CALL and frame.file.endswith(RPC_FILE):
            try:
                return CollectiveWait(RPC_CALL, peer=_worker(session, locals_of(runtime, frame).get(RPC_WORKER, 0)))
            except GdbextError:
                return CollectiveWait(RPC_CALL)
    return _owed_answer(session, runtime, thread)


def _owed_answer(session: Session, runtime: PythonRuntime, thread: ThreadSnapshot) -> CollectiveWait | None:
    """The wait for a future that another rank's answer ends; None for any other."""
    agent, call = RPC_AGENT.address(session.symbolizer), thread.syscall
    if agent is None or call is None or call.name != "futex" or not thread.python:
        return None
    reader = ProcessGroupReader(session.memory, session.layout, session.symbolizer, runtime)
    peer = worker_that_owes(session.memory, reader.class_of, agent, call.arguments[0])
    functions = (thread.stack.function(level) for level in range(min(_DEPTH, len(thread.frames))))
    fetches = any(function is not None and _FETCHES in function.name for function in functions)
    return None if peer is None else CollectiveWait(RPC_FETCH if fetches else RPC_ASYNC, peer=peer)


def _worker(session: Session, address: int) -> int | None:
    """The rank of a worker, which a program names by that or by a string. Raises GdbextError: by an object."""
    rank = _integer(session, address)
    agent = RPC_AGENT.address(session.symbolizer)
    if rank is not None or agent is None or session.python is None or not address:
        return rank
    name = session.python.objects.text(address)
    return rank_of_worker(session.memory, string_reader(session.memory, session.layout), agent, name)


def _unnumbered(thread: ThreadSnapshot, section: CollectivesSection) -> CollectiveWait | None:
    """An operation of all ranks that has no number. Its group is known where there is but one."""
    for frame in thread.python[:_DEPTH]:
        if frame.function in UNNUMBERED and frame.file is not None and frame.file.endswith(DISTRIBUTED_FILE):
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
    if call is None or call.name != "futex" or session.python is None:
        return CollectiveWait(op)
    reader = ProcessGroupReader(session.memory, session.layout, session.symbolizer, session.python)
    found = waiting_transfer(session.memory, reader.class_of, call.arguments[0])
    if found is None:
        return CollectiveWait(op)
    alike = {group.ranks for group in section.groups if (group.rank, group.size) == (found.rank, found.size)}
    peers = {ranks[found.peer] for ranks in alike if found.peer < len(ranks)}
    return CollectiveWait(op, peer=peers.pop() if len(peers) == 1 else None, tag=found.tag)


def _integer(session: Session, address: int) -> int | None:
    try:
        return session.python.objects.integer(address) if session.python is not None and address else None
    except GdbextError:  # None, of which most arguments are
        return None


def _is_none(session: Session, address: int) -> bool:
    """The argument is None, or the function has none of that name."""
    try:
        return not address or session.python is None or session.python.objects.type_of(address).name == "NoneType"
    except GdbextError:
        return False


def _in_job(rank: int | None, groups: tuple[ProcessGroup, ...]) -> int | None:
    """A rank of the only group as a rank of the job; of one among several groups nobody knows which it is."""
    if rank is None or len(groups) != 1 or rank >= len(groups[0].ranks):
        return None
    return groups[0].ranks[rank]
