"""Reads a process's knowledge of its job: groups, sequence numbers and pending collectives."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.job import RANK, SIZE, first_number, job_names
from gdbext.diagnosis.job.collectives_section import CollectivesSection, CollectivesSource, JobRank
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
from gdbext.torch.distributed.python_calls import given_rank
from gdbext.torch.torch_symbol import DISTRIBUTED, TORCH_FILES
from gdbext.torch.values.containers import string_reader
from gdbext.torch.values.value_text import python_name

if TYPE_CHECKING:
    from gdbext.cpython.objects.py_ref import PyRef
    from gdbext.diagnosis.session import Session

RECENT = 8
"""Operations of each group that are kept besides the pending ones, to match them over ranks."""
PENDING_LIMIT = 256
"""Most pending operations of each group."""
_WORLD = "0"
"""The name that torch.distributed gives to the first group, which is the whole job."""


def environment(session: Session) -> Mapping[str, str]:
    """The environment as the program has it now: Python's os.environ, else the one with which it was started."""
    variables = dict(session.target.origin.environ())
    # Lib/os.py: os.environ is an _Environ, which keeps a dict of bytes.
    environ = session.python.globals_of("os")["environ"]["_data"]
    entries = environ.items(4_000)

    def decoded(value: PyRef) -> str:
        return (value.bytes(4_096) or b"").decode("utf-8", "replace")

    for key, value in entries:
        name = decoded(key)
        if name in _VARIABLES:
            variables[name] = decoded(value)
    recorded = session.target.origin.recorded is not None  # perhaps before this was read
    if entries.fault and not environ.is_absent and not recorded:
        session.errors.note(entries.fault, "os.environ")
    return variables


_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_RESTART = ("TORCHELASTIC_RESTART_COUNT",)
"""The count of torchrun's agent for its own machine (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
_JOB = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE")
_VARIABLES = frozenset((*RANK, *SIZE, *_LOCAL_RANK, *_LOCAL_SIZE, *_RESTART, *_JOB))


def _identity_by_environment(session: Session) -> tuple[JobRank, str | None]:
    """(the rank and its job by the environment, all None if no launcher set them; the address where the ranks meet)."""
    environ, target = environment(session), session.target
    identity = JobRank(
        rank=first_number(environ, RANK),
        size=first_number(environ, SIZE),
        local_rank=first_number(environ, _LOCAL_RANK),
        local_size=first_number(environ, _LOCAL_SIZE),
        host=None if target.origin.is_core else target.origin.files.host() or None,
        job=next(iter(job_names(environ)), None),
        restart=first_number(environ, _RESTART),
    )
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    return identity, f"tcp://{host}:{port}" if host and port else None


def recorders_of(session: Session) -> list[flight_recorder.FlightRecorder]:
    """The enabled flight recorders. Raises NotTorch, LayoutError, MemoryFault."""
    memory, symbolizer, layout = session.memory, session.symbolizer, session.layout
    addresses = flight_recorder.find_recorders(memory, symbolizer)
    try:
        addresses += flight_recorder.find_recorders_of_hooks(memory, symbolizer, layout)
    except GdbextError as error:
        session.errors.note(error, "flight recorder")
    recorders = [flight_recorder.FlightRecorder(memory, layout, address) for address in addresses]
    return [recorder for recorder in recorders if recorder.is_enabled]


def read_collectives(session: Session) -> CollectivesSection:
    """All groups of the process; errors of reading are in the session's errors. Raises NotTorch, LayoutError."""
    layout = session.layout
    recorded, objects = _Recorded(session), known_groups(session)
    # Gloo describes its groups before they have their names.
    names = filter(None, dict.fromkeys([*objects.objects, *recorded.described, *recorded.entries]))
    groups = [recorded.group(name, objects) for name in sorted(names, key=lambda name: name != _WORLD)]
    source = None
    if groups:
        source = CollectivesSource.FLIGHT_RECORDER if recorded.recorders else CollectivesSource.PROCESS_GROUP
    elif not layout.has_struct(ProcessGroupStruct.OF):
        error = GdbextError(
            f"layout {layout.id} does not have the structures of torch.distributed",
            why="it was measured by an older gdbext, or the headers of this build lack them",
            help="measure it again: scripts/dispatch measure /path/to/site-packages/torch",
        )
        session.errors.note(error, "collectives")
    identity, meeting_place = _identity(session, groups)
    store = next((group.store for group in groups if group.store), None)
    return CollectivesSection(source, identity, tuple(groups), store or meeting_place)


def collectives_without_torch(session: Session) -> CollectivesSection:
    """The section of a rank that has not loaded torch yet: what its environment shows."""
    identity, meeting_place = _identity_by_environment(session)
    return CollectivesSection(None, identity, (), meeting_place)


class KnownGroups(NamedTuple):
    """Group objects by name, and their reader."""

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


class _Recorded:
    """What the flight recorders have of the process's groups."""

    def __init__(self, session: Session) -> None:
        """Reads all recorders; errors are in the session's errors."""
        self._session = session
        self._now, self._steady = (
            None if seconds is None else int(seconds * 1e9)  # None for a core
            for seconds in map(session.procfs.clock, (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC))
        )
        self._statuses: dict[str, flight_recorder.GroupStatus] = {}
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
        """Add what a recorder has of groups and operations."""
        statuses = recorder.statuses()
        for (name, description), ranks in recorder.groups().items():
            self.described[name] = (description, ranks)
        for entry in recorder.entries():
            self.entries.setdefault(entry.group, []).append((recorder, entry))
            if entry.pg_id in statuses:
                self._statuses[entry.group] = statuses[entry.pg_id]
        for problem in recorder.problems:
            self._session.errors.note(problem, "flight recorder")

    def group(self, name: str, groups: KnownGroups) -> ProcessGroup:
        """The group of that name: its object, if there is one in ``groups``, with what the recorder has of it."""
        description, ranks = self.described.get(name, ("", ()))
        entries = self.entries.get(name, [])
        known = groups.objects.get(name)
        if not known:
            # Its operations are named gloo:all_reduce.
            titles = (entry.profiling_name for _, entry in entries)
            backend = next((title.partition(":")[0] for title in titles if ":" in title), None)
            known = ProcessGroup(name, "", backend, None, len(ranks) or None, ranks, None, None, None)
        status = self._statuses.get(name) or known.status
        ranks = ranks or known.ranks
        if self.recorders:
            issued = [self._collective(*entry, ranks) for entry in entries if entry[1].is_pending]
        else:
            issued = [self._queued(work) for work in known.queued]
        store = None
        if known.store_address and groups.reader:
            session = self._session
            store = store_address(session.memory, session.layout, groups.reader, known.store_address)

        def sequence(value: int) -> int | None:
            return None if value < 0 else value

        return known._replace(
            description=description or known.description,
            ranks=tuple(ranks),
            last_enqueued=sequence(status.enqueued) if status else None,
            last_started=sequence(status.started) if status else None,
            last_completed=sequence(status.completed) if status else None,
            pending=tuple(issued[:PENDING_LIMIT] if self.recorders else issued),
            recent=tuple(self._collective(*entry, ranks) for entry in entries[-RECENT:]),
            store=store,
            communicators=self._communicators(known),
        )

    def _queued(self, work: QueuedWork) -> Collective:
        """A piece of work in a group's own queue, which has neither sizes nor lines."""
        backend, _, op = work.title.rpartition(":")
        state = "started" if work.in_progress else "scheduled"
        now = self._steady
        age = None if now is None or work.began is None else max(0, (now - work.began) // 1_000_000)
        return Collective(work.seq, op, state, timeout_ms=work.timeout_ms, age_ms=age, backend=backend)

    def _collective(
        self, recorder: flight_recorder.FlightRecorder, entry: flight_recorder.RecordedEntry, ranks: Sequence[int]
    ) -> Collective:
        """The operation of a recorded entry. ``ranks``: the group's members as ranks of the job."""
        file, line = None, None
        if entry.is_pending:  # the user's line: the innermost frame outside of torch, else the innermost one
            frames = traceback_lines(self._session, recorder, entry)
            user = next((frame for frame in frames if TORCH_FILES not in frame[1]), None)
            _, file, line = user or next(iter(frames), ("", None, None))

        op, peer = _transfer_of(entry.profiling_name.partition(":")[2] or entry.profiling_name)
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

    def _communicators(self, group: ProcessGroup) -> tuple[Communicator, ...]:
        """NCCL's communicators of a group; errors of reading are in the session's errors."""
        if not group.nccl or group.rank is None or group.size is None:
            return ()
        note = self._session.errors.note
        try:
            reader = self._communicator_reader
            communicators = reader.of_group(group.nccl, group.rank, group.size) if reader else ()
        except GdbextError as error:
            note(error, "NCCL's communicators")
            return ()
        while reader and reader.problems:  # those of this group: each is noted once
            note(reader.problems.pop(0), "NCCL's communicators")
        return communicators

    @cached_property
    def _communicator_reader(self) -> CommunicatorReader | None:
        """None if this release of NCCL was not measured, which is noted once. Raises LayoutError."""
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
    """(function, file, line) of the frames that issued an entry, innermost first. Unreadable frames are left out."""
    lines: list[tuple[str, str, int]] = []
    if not session.python:
        return lines
    try:
        for frame in recorder.traceback(entry):
            code = session.python.codes.get(frame.code)
            lines.append((code.name, code.file, code.line(frame.offset) or code.first_line))
    except GdbextError as error:
        session.errors.note(error, f"traceback of {entry.profiling_name} #{entry.collective_seq}")
    return lines


def _transfer_of(op: str) -> tuple[str, int | None]:
    """(operation, peer's rank in the group or None) of NCCL's name ``recv 0<-1`` (ProcessGroupNCCL.cpp)."""
    name, _, ends = op.partition(" ")
    other = number(ends.rpartition("->" if name == "send" else "<-")[2])
    return (name, other) if name in ("send", "recv") and other is not None else (op, None)


def _identity(session: Session, groups: Sequence[ProcessGroup]) -> tuple[JobRank, str | None]:
    """(rank and job, the environment's address where ranks meet). The rank comes from the job's group, else from
    init_process_group's arguments on a stack, else from the environment, else from the RPC agent."""
    identity, meeting_place = _identity_by_environment(session)
    rank, size, job = identity.rank, identity.size, identity.job
    table = session.python_threads
    given = next(filter(None, (given_rank(table.frames(tid)) for tid in table.states)), None)
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
    return identity._replace(rank=rank, size=size, job=job), meeting_place
