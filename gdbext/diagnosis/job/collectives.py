"""Reads a process's knowledge of its job: groups, sequence numbers and pending collectives."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.job import environment, from_environment
from gdbext.diagnosis.job.collectives_section import (
    CollectivesSection,
    CollectivesSource,
    JobRank,
)
from gdbext.engine.numbers import number
from gdbext.errors import GdbextError
from gdbext.known.package_versions import nccl_version
from gdbext.torch.assumed_symbols import RPC_AGENT
from gdbext.torch.distributed import flight_recorder
from gdbext.torch.distributed.awaited_ranks import own_worker
from gdbext.torch.distributed.group_structures import ProcessGroupStruct
from gdbext.torch.distributed.nccl_communicators import Communicator, CommunicatorReader, release_of
from gdbext.torch.distributed.process_groups import (
    Collective,
    ProcessGroup,
    ProcessGroupReader,
    QueuedWork,
    store_address,
)
from gdbext.torch.distributed.python_calls import GivenRank, given_rank
from gdbext.torch.torch_symbol import DISTRIBUTED, TORCH_FILES
from gdbext.torch.values.containers import string_reader
from gdbext.torch.values.value_text import python_name

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session

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
    found = [recorded.group(groups.objects.get(name) or recorded.unread(name), groups) for name in names]
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


class KnownGroups(NamedTuple):
    """Group objects by name, and what reads more of them."""

    reader: ProcessGroupReader | None
    objects: dict[str, ProcessGroup]


def group_reader(session: Session) -> ProcessGroupReader:
    """The reader of the groups that torch.distributed keeps. Raises LayoutError."""
    distributed = session.python.globals_of(DISTRIBUTED)
    return ProcessGroupReader(session.memory, session.layout, session.symbolizer, distributed)


def known_groups(session: Session) -> KnownGroups:
    """The groups that torch.distributed keeps; none without Python."""
    if not session.python:
        return KnownGroups(None, {})
    try:
        reader = group_reader(session)
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

    def unread(self, name: str) -> ProcessGroup:
        """A group that only the recorder knows."""
        _, ranks = self.described.get(name, ("", ()))
        backend = _backend(self.entries.get(name, []))
        return ProcessGroup(name, "", backend, None, len(ranks) or None, ranks, None, None, None)

    def group(self, known: ProcessGroup, groups: KnownGroups) -> ProcessGroup:
        """The group with what the recorder has of it."""
        description, ranks = self.described.get(known.name, ("", ()))
        entries = self.entries.get(known.name, [])
        status = self._statuses.get(known.name) or known.status
        ranks = ranks or known.ranks
        return known._replace(
            description=description or known.description,
            ranks=tuple(ranks),
            last_enqueued=_number(status.enqueued) if status else None,
            last_started=_number(status.started) if status else None,
            last_completed=_number(status.completed) if status else None,
            pending=tuple(self._pending(entries, known, ranks)),
            recent=tuple(self._collective(*each, ranks) for each in entries[-RECENT:]),
            store=self._store(known, groups),
            communicators=self._nccl.of(known),
        )

    def _pending(self, entries: Sequence[Issued], known: ProcessGroup, ranks: Sequence[int]) -> Iterable[Collective]:
        if self.recorders:
            return [self._collective(*each, ranks) for each in entries if each[1].is_pending][:PENDING_LIMIT]
        return [_queued(work, self._steady) for work in known.queued]

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
        return (found[1], found[2]) if found else (None, None)

    def _store(self, known: ProcessGroup, groups: KnownGroups) -> str | None:
        if not known.store_address or not groups.reader:
            return None
        return store_address(self._session.memory, self._session.layout, groups.reader, known.store_address)


class _Communicators:
    """NCCL's communicators of a process's groups, where its release of NCCL was measured."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def of(self, group: ProcessGroup) -> tuple[Communicator, ...]:
        """Those of that group; what cannot be read is in the session's errors."""
        if not group.nccl or group.rank is None or group.size is None:
            return ()
        try:
            reader = self._reader
            found = reader.of_group(group.nccl, group.rank, group.size) if reader else ()
        except GdbextError as error:
            self._session.errors.note(error, "NCCL's communicators")
            return ()
        while reader and reader.problems:  # those of this group: each is said once
            self._session.errors.note(reader.problems.pop(0), "NCCL's communicators")
        return found

    @cached_property
    def _reader(self) -> CommunicatorReader | None:
        """None where this release was not measured, which is said once. Raises LayoutError."""
        version = nccl_version(self._session.modules)
        if version is None:
            return None
        release = release_of(version, self._session.memory.architecture.name)
        if not release:
            what = f"the structures of NCCL {version} are not known"
            why = "its communicators and their transfers are not read"
            self._session.errors.note(GdbextError(what, why=why), "NCCL's communicators")
            return None
        return CommunicatorReader(self._session.memory, release)


def traceback_lines(
    session: Session, recorder: flight_recorder.FlightRecorder, entry: flight_recorder.RecordedEntry
) -> list[tuple[str, str, int]]:
    """(function, file, line) of the frames that issued an entry, innermost first. What cannot be read is left out."""
    if not session.python:
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
    seconds = session.procfs.clock(which)
    return None if seconds is None else int(seconds * 1e9)


def _identity(session: Session, groups: Sequence[ProcessGroup]) -> JobRank:
    """The whole job's group says it, where there is one; else the arguments of init_process_group, where a thread is in
    it; else the environment; else the agent of torch.distributed.rpc, which may be all that a process has of it."""
    known = from_environment(session)
    rank, size, job = known.rank, known.size, known.job
    given = _given(session)
    if given:
        rank, size, job = given.rank, given.size or size, job or given.method.partition("://")[2] or None
    world = next((group for group in groups if group.name == _WORLD and group.rank is not None), None)
    if world:
        meeting = (world.store or "").removeprefix("tcp://") or None  # as the environment would name it
        rank, size, job = world.rank, world.size, job or meeting
    elif rank is None:
        agent = RPC_AGENT.address(session.symbolizer)
        strings = string_reader(session.memory, session.layout)
        own = own_worker(session.memory, strings, agent) if agent else None
        rank, size = own or (rank, size)
    return known._replace(rank=rank, size=size, job=job)


def _given(session: Session) -> GivenRank | None:
    """The arguments of init_process_group, where a thread is in it."""
    table = session.python_threads
    found = (given_rank(table.frames(tid)) for tid in table.states)
    return next((each for each in found if each), None)


def _rendezvous(session: Session) -> str | None:
    """The place where the ranks meet, as the environment says."""
    environ = environment(session)
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    return f"tcp://{host}:{port}" if host and port else None
