"""The process groups of a process, as ``torch.distributed`` keeps them: Python's dicts, and the C++ objects in them.

Sources: torch/distributed/distributed_c10d.py (``_pg_map`` and its like), and of torch/csrc/distributed/c10d
ProcessGroup.hpp, Backend.hpp, ProcessGroupGloo.hpp, Store.hpp, PrefixStore.hpp, TCPStore.hpp and FileStore.hpp of
2.13.0; ProcessGroupNCCL.hpp of 2.3 to 2.10 (``pgStatus_`` has the numbers of enqueued and completed operations,
``workMetaList_`` a copy of each that the watchdog has not seen completed). An object of pybind11 with one value and the
default holder has the address of its C++ object behind its head (pybind11/detail/common.h, ``instance``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef, integer, text
from gdbext.engine.layouts import Layout, store
from gdbext.engine.layouts.declarations import OffsetShapes, Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, GdbextError, LayoutError
from gdbext.torch.distributed import group_structures as structures
from gdbext.torch.distributed.flight_recorder import GroupStatus, read_status
from gdbext.torch.distributed.nccl_communicators import Communicator
from gdbext.torch.torch_symbol import GROUP_MAP, GROUP_NAMES, GROUP_RANKS
from gdbext.torch.values import containers
from gdbext.torch.values.cpp_objects import ClassNames

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Internal

GROUP, WORK, STATUS = structures.NcclGroupStruct.OF, structures.NcclWorkStruct.OF, structures.ProcessGroupStatus.OF
_WORK_LIMIT = 4096
_RECORDER_NAMES = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
}
"""``OpType`` (torch/csrc/distributed/c10d/Work.hpp) → the flight recorder's name, unless that is it in lower case."""


class QueuedWork(NamedTuple):
    """One operation that a group has not finished (``ProcessGroupGloo::AsyncWork``, ``WorkNCCL``)."""

    seq: int
    """Its sequence number in the group."""
    title: str
    """The profiler's name for it: ``gloo:all_reduce``."""
    timeout_ms: int
    in_progress: bool
    began: int | None = None
    """Its start in nanoseconds of the steady clock; None if it is not recorded."""


class NcclGroup(NamedTuple):
    """The progress of a group, and its unfinished work, oldest first."""

    status: GroupStatus
    works: tuple[QueuedWork, ...]


def read_nccl_group(
    memory: Memory, layout: Layout, members: Mapping[str, Mapping[str, int]], address: int
) -> NcclGroup:
    """The progress and the queue of the ProcessGroupNCCL at ``address``. ``members`` has the offsets of its release:
    class → member → offset in bytes. Raises BadData if its numbers contradict each other, MemoryFault, LayoutError."""
    space = Space(memory, OffsetShapes(members))
    group = structures.NcclGroupStruct(space, address)
    if GROUP not in members or WORK not in members or not group.has(structures.NcclGroupStruct.pgStatus_):
        raise LayoutError("the NCCL groups of this release keep their sequence numbers elsewhere")
    last_seq = group.seqCollective_
    # up to 2.7 the status is NCCL's alone, and in no other layout
    status_space = space if members.get(STATUS) else Space(memory, layout)
    status = read_status(structures.ProcessGroupStatus(status_space, group.pgStatus_))
    if not -1 <= status.completed <= status.enqueued <= last_seq:
        numbers = f"{last_seq} collectives, {status.enqueued} enqueued, {status.completed} completed"
        raise BadData(f"the numbers of NCCL's group at {address:#x} are inconsistent: {numbers}")
    works = tuple(_queued_works(group, layout))
    if any(work.seq > last_seq for work in works):
        raise BadData(f"NCCL's group at {address:#x} has work after its last collective, #{last_seq}")
    return NcclGroup(status, works)


def _queued_works(group: structures.NcclGroupStruct, layout: Layout) -> Iterator[QueuedWork]:
    """The unfinished work of a group, oldest first. Raises BadData, MemoryFault, LayoutError."""
    is_cxx11 = containers.has_cxx11_abi(layout)
    types = {number: name for name, number in layout.enum("c10d::OpType").items()}
    for item in containers.list_items(group.space.memory, group.workMetaList_, _WORK_LIMIT, is_cxx11):
        work = structures.NcclWorkStruct(group.space, item)
        kind = types.get(work.opType_, "")
        name = _RECORDER_NAMES.get(kind, kind.lower() or "an operation")
        # NCCL does not say when an operation starts
        yield QueuedWork(work.seq_, f"nccl:{name}", work.opTimeout_, in_progress=False, began=work.workStartTime_)


GROUP_LIMIT = 4096
RANK_LIMIT = 1 << 20


class Collective(NamedTuple):
    """One collective or point-to-point operation that this process has issued.

    ``seq`` is its number in its group as the group counts, None for a send or recv without a number. ``sizes`` and
    ``dtypes`` describe the inputs. Times are milliseconds, None if they are not recorded.
    """

    seq: int | None
    op: str
    """The operation as the backend calls it, without the backend: ``all_reduce``."""
    state: str
    """``scheduled``, ``started`` or ``completed``, the flight recorder's words."""
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    is_p2p: bool = False
    peer: int | None = None
    """The other end of a send or recv: its rank in the job."""
    age_ms: int | None = None
    """Milliseconds since it was issued; None for a core."""
    timeout_ms: int | None = None
    thread: str = ""
    """The name of the thread that issued it."""
    backend: str = ""
    """The backend as the operation names it: ``gloo``, ``nccl``, ``nccl2``."""
    file: str | None = None
    line: int | None = None
    """The user's line that issued it: the innermost one outside torch, else the innermost."""


class ProcessGroup(NamedTuple):
    """One process group. A value of None could not be read; sequence numbers are None before the first collective."""

    name: str
    description: str
    backend: str | None
    """The backend as the program named it: ``gloo``, ``cpu:gloo,cuda:nccl``."""
    rank: int | None
    """This process's rank in the group."""
    size: int | None
    ranks: tuple[int, ...]
    """The members' ranks in the job, by their rank in the group; empty if unknown."""
    last_enqueued: int | None
    last_started: int | None
    last_completed: int | None
    pending: tuple[Collective, ...] = ()
    """Issued and not completed, oldest first."""
    recent: tuple[Collective, ...] = ()
    """The last ones that were issued, oldest first, to match them across ranks."""
    store: str | None = None
    """The store through which the members meet: ``tcp://host:port``, ``file:///path``."""
    communicators: tuple[Communicator, ...] = ()
    """NCCL's own, with this process as one rank; peers of their transfers are ranks in the group."""
    store_address: Internal[int] = 0
    """Address of its ``c10d::Store``, 0 if unknown."""
    status: Internal[GroupStatus | None] = None
    """The numbers that the group itself keeps."""
    queued: Internal[tuple[QueuedWork, ...]] = ()
    nccl: Internal[int] = 0
    """Address of its ``c10d::ProcessGroupNCCL``, 0 if it has none."""

    @property
    def label(self) -> str:
        """The group as people call it; torch's default description is "undefined"."""
        return self.name if self.description in ("", "undefined") else self.description


class ProcessGroupReader:
    """Reads the groups in the variables of torch.distributed's module; ``problems`` are failed reads."""

    def __init__(self, memory: Memory, layout: Layout, symbolizer: Symbolizer, distributed: PyRef) -> None:
        """``distributed``: the global variables of the module torch.distributed.distributed_c10d."""
        self._memory = memory
        self._layout = layout
        self._space = Space(memory, layout)
        self._classes = ClassNames(memory, symbolizer)
        self._distributed = distributed
        self._strings = containers.string_reader(memory, layout)
        self.problems: list[GdbextError] = []

    def groups(self) -> list[ProcessGroup]:
        """All groups, in the order in which they were made; empty before init_process_group()."""
        variables = [self._distributed[name] for name in (GROUP_MAP, GROUP_NAMES, GROUP_RANKS)]
        faults = [variable.fault for variable in variables if variable.fault]
        self.problems += faults[:1]
        if faults or not variables[0]:
            return []
        backends, names, ranks = (dict(value.items(GROUP_LIMIT).checked()) if value else {} for value in variables)
        groups = []
        for group, backend_and_store in backends.items():
            try:
                first = backend_and_store.elements(1).checked()
                backend = first[0].read(text) if first else None
                name = names[group].read(text) if names.get(group) else ""
                members = _ranks_in_job(ranks[group]) if ranks.get(group) else ()
                groups.append(self._group(group, name, backend, members))
            except GdbextError as error:
                self.problems.append(error)
        return groups

    def _group(self, group: PyRef, name: str, backend: str | None, ranks: tuple[int, ...]) -> ProcessGroup:
        """The group of the Python object ``group`` with what its C++ object keeps; if that cannot be read, only with
        the facts that Python's dicts have: name, backend and the members' ranks in the job."""
        unread = ProcessGroup(name, "", backend, None, None, ranks, None, None, None)
        try:
            # pybind11's object: PyObject_HEAD, then the address of the C++ object
            cpp = structures.ProcessGroupStruct(self._space, self._memory.u64(group.address + 16))
            nccl_address = self._backend_address(cpp, GROUP)
            gloo_address = self._backend_address(cpp, structures.GlooGroup.OF)
            gloo = structures.GlooGroup(self._space, gloo_address) if gloo_address else None
            nccl = self._read_nccl(nccl_address)
            description = cpp.pg_desc_ if cpp.has(structures.ProcessGroupStruct.pg_desc_) else 0
            rank, size = cpp.rank_, cpp.size_
            if not 0 <= rank < size <= RANK_LIMIT:
                raise BadData(f"the process group at {cpp.address:#x} claims to be rank {rank} of {size}")
            gloo_status = read_status(gloo.pgStatus_) if gloo and gloo.has(structures.GlooGroup.pgStatus_) else None
            return unread._replace(
                description=self._strings.read(description, 4096) if description else "",
                rank=rank,
                size=size,
                store_address=cpp.store_ if cpp.has(structures.ProcessGroupStruct.store_) else 0,
                status=nccl.status if nccl else gloo_status,
                queued=(*(nccl.works if nccl else ()), *(self._gloo_queue(gloo) if gloo else ())),
                nccl=nccl_address,
            )
        except GdbextError as error:
            self.problems.append(error)
            return unread

    def _backend_address(self, group: structures.ProcessGroupStruct, class_name: str) -> int:
        """Address of the first of the group's backends of that C++ class; 0 if there is none."""
        backends = containers.hash_entries(self._memory, self._layout, group.deviceTypeToBackend_, 2, 64)
        return next((backend for _device, backend in backends if self.class_of(backend) == class_name), 0)

    def _read_nccl(self, backend: int) -> NcclGroup | None:
        """The progress of the ProcessGroupNCCL at ``backend``; None if that is 0, or the offsets of its members in this
        release were not measured."""
        if not backend or self._layout.match != "exact":
            return None
        data = store.data_of(self._memory.architecture.name)
        members = store.member_offsets(
            "nccl-groups", self._layout.version, containers.has_cxx11_abi(self._layout), data
        )
        if not members:
            return None
        try:
            return read_nccl_group(self._memory, self._layout, members, backend)
        except GdbextError as error:
            self.problems.append(error)
            return None

    def class_of(self, address: int) -> str:
        """The C++ class of the object at ``address``, "" if it has no vtable with a symbol. Raises MemoryFault."""
        return next(iter(self._classes.of(address)), "")

    def _gloo_queue(self, backend: structures.GlooGroup) -> Iterator[QueuedWork]:
        """The operations that the group's threads work on, then those in their queue."""
        start, count = containers.vector_span(self._memory, backend.workInProgress_, 8, _WORK_LIMIT)
        for address in self._memory.words(start, count) if count else ():
            if address:
                yield self._gloo_work(address, in_progress=True)
        # a std::deque of pointers: blocks of 512 bytes (bits/stl_deque.h, _GLIBCXX_DEQUE_BUF_SIZE)
        deque = backend.workQueue_
        current, block_end, node, end = deque.first, deque.block_end, deque.block, deque.end
        for _ in range(_WORK_LIMIT):
            if current == end:
                return
            yield self._gloo_work(self._memory.u64(current), in_progress=False)
            current += 8
            if current == block_end and current != end:
                node += 8
                current = self._memory.u64(node)
                block_end = current + 512

    def _gloo_work(self, address: int, in_progress: bool) -> QueuedWork:
        """The ``AsyncWork`` at ``address``; ``in_progress``: a thread works on it."""
        work = structures.GlooWork(self._space, address)
        if not work.has(structures.GlooWork.seq_):
            raise LayoutError("the work of this release has no sequence number")
        title = self._strings.read(work.profilingTitle_, 4096)
        timeout = work.timeout_ if work.has(structures.GlooWork.timeout_) else 0
        return QueuedWork(work.seq_, title, timeout, in_progress)


def _ranks_in_job(ranks: PyRef) -> tuple[int, ...]:
    """The members' ranks in the job, by their rank in the group. ``ranks`` is Python's dict {rank in the job: rank in
    the group}. Raises BadData for numbers that cannot be ranks."""
    in_job = {in_group.read(integer): rank.read(integer) for rank, in_group in ranks.items(RANK_LIMIT).checked()}
    if not all(0 <= rank < RANK_LIMIT for rank in in_job.values()):
        raise BadData(f"the members of a process group at {ranks.address:#x} are not ranks")
    return tuple(in_job[rank] for rank in sorted(in_job))


def store_address(memory: Memory, layout: Layout, groups: ProcessGroupReader, address: int) -> str | None:
    """The location of the ``c10d::Store`` at ``address``: ``tcp://host:port``, ``file:///path``, ``hash`` (in this
    process); None if unknown."""
    strings, space = containers.string_reader(memory, layout), Space(memory, layout)
    with suppress(GdbextError):
        for _ in range(16):  # PrefixStores around a store: each group and each of its backends adds one
            name = groups.class_of(address)
            if name == "c10d::HashStore":
                return "hash"
            if name == structures.TcpStore.OF:
                socket = structures.TcpStore(space, address).addr_
                return f"tcp://{strings.read(socket.host, 4096)}:{socket.port}"
            if name == structures.FileStore.OF:
                return f"file://{strings.read(structures.FileStore(space, address).path_, 4096)}"
            if name != structures.PrefixStore.OF:
                return None
            address = structures.PrefixStore(space, address).store_
    return None
