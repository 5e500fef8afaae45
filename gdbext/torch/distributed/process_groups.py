"""The process groups of a process, as ``torch.distributed`` keeps them: Python's dicts, and the C++ objects in them.

Source: torch/distributed/distributed_c10d.py (``_pg_map`` and its like), torch/csrc/distributed/c10d/ProcessGroup.hpp,
Backend.hpp, ProcessGroupGloo.hpp of 2.13.0. An object of pybind11 with one value and the default holder has the address
of its C++ object behind its head (pybind11/detail/common.h, ``instance``).

NCCL's process groups without a flight recorder: how far one came, and the work that its watchdog has on its list.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp of 2.3 to 2.10: ``pgStatus_`` has the numbers of what was
enqueued and completed, ``workMetaList_`` a copy of each piece of work until the watchdog has seen it completed.

Where the ranks of a group meet: the address of a ``c10d::Store`` in memory.

Source: torch/csrc/distributed/c10d/Store.hpp, PrefixStore.hpp, TCPStore.hpp, FileStore.hpp of 2.13.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.objects.py_ref import PyRef, integer, text
from gdbext.engine.formats.demangle import demangle
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

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Internal

GROUP, WORK, STATUS = structures.NcclGroupStruct.OF, structures.NcclWorkStruct.OF, structures.ProcessGroupStatus.OF
_WORK_LIMIT = 4096
_NAMES = {
    "BROADCAST": "broadcast",
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "allreduce_coalesced",
    "REDUCE": "reduce",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "SEND": "send",
    "RECV": "recv",
    "BARRIER": "barrier",
    "COALESCED": "coalesced",
}
"""``OpType`` (torch/csrc/distributed/c10d/Work.hpp) → what the flight recorder calls the operation."""


class NcclWork(NamedTuple):
    """One ``WorkNCCL``. ``began`` is by the steady clock, in nanoseconds."""

    seq: int
    op: str
    timeout_ms: int
    began: int


class NcclGroup(NamedTuple):
    """The progress of a group, and what it waits for, oldest first."""

    status: GroupStatus
    works: tuple[NcclWork, ...]


def read_group(memory: Memory, layout: Layout, members: Mapping[str, Mapping[str, int]], address: int) -> NcclGroup:
    """The group at that address. Raises BadData where its numbers do not go together, MemoryFault, LayoutError."""
    space = Space(memory, OffsetShapes(members))
    group = structures.NcclGroupStruct(space, address)
    if GROUP not in members or WORK not in members or not group.has(structures.NcclGroupStruct.pgStatus_):
        raise LayoutError("NCCL's groups of this release keep their numbers elsewhere")
    last = group.seqCollective_
    known = space if members.get(STATUS) else Space(memory, layout)  # NCCL's alone up to 2.7, in no layout of these
    status = read_status(structures.ProcessGroupStatus(known, group.pgStatus_))
    if not -1 <= status.completed <= status.enqueued <= last:
        raise BadData(_disagreement(address, last, status))
    items = containers.list_items(memory, group.workMetaList_, _WORK_LIMIT, containers.has_cxx11_abi(layout))
    types = {number: name for name, number in layout.enum("c10d::OpType").items()}
    works = tuple(_work(structures.NcclWorkStruct(space, each), types) for each in items)
    if any(work.seq > last for work in works):
        raise BadData(f"NCCL's group at {address:#x} has work behind its last collective, #{last}")
    return NcclGroup(status, works)


def _disagreement(address: int, last: int, status: GroupStatus) -> str:
    numbers = f"{last} collectives, {status.enqueued} enqueued, {status.completed} completed"
    return f"the numbers of NCCL's group at {address:#x} do not go together: {numbers}"


def _work(work: structures.NcclWorkStruct, types: Mapping[int, str]) -> NcclWork:
    name = types.get(work.opType_, "")
    return NcclWork(
        seq=work.seq_,
        op=_NAMES.get(name, name.lower() or "an operation"),
        timeout_ms=work.opTimeout_,
        began=work.workStartTime_,
    )


GROUP_LIMIT = 4096
RANK_LIMIT = 1 << 20
_BACKEND_LIMIT = 64
_HEAD = 16
"""Size of PyObject_HEAD, in bytes."""
_VTABLE = "vtable for "
_VTABLE_START = 16


class QueuedWork(NamedTuple):
    """One piece of work that a group has not finished (``ProcessGroupGloo::AsyncWork``, ``WorkNCCL``)."""

    seq: int
    title: str
    """The name that the profiler has for it: ``gloo:all_reduce``."""
    timeout_ms: int
    in_progress: bool
    began: int | None = None
    """Start by the steady clock, in nanoseconds; None where nobody wrote it down."""


class Collective(NamedTuple):
    """One collective or point-to-point operation that this process has issued.

    ``seq`` is its number in its group as the group counts, None for a send or recv that nobody numbered. ``sizes`` and
    ``dtypes`` are those of the inputs. Times are milliseconds, None where they are not recorded.
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
    """The user's line that issued it: the innermost one outside of torch, else the innermost."""


class ProcessGroup(NamedTuple):
    """One process group. What is None could not be read; sequence numbers are None before the first collective."""

    name: str
    description: str
    backend: str | None
    """The backend as the program named it: ``gloo``, ``cpu:gloo,cuda:nccl``."""
    rank: int | None
    """This process's rank in the group."""
    size: int | None
    ranks: tuple[int, ...]
    """The members' ranks in the job, by their rank in the group; empty where that is not known."""
    last_enqueued: int | None
    last_started: int | None
    last_completed: int | None
    pending: tuple[Collective, ...] = ()
    """Issued and not completed, oldest first."""
    recent: tuple[Collective, ...] = ()
    """The last ones that were issued, oldest first, to match them over ranks."""
    store: str | None = None
    """The place where the group's members meet: ``tcp://host:port``, ``file:///path``."""
    communicators: tuple[Communicator, ...] = ()
    """NCCL's own, of which this process is one rank; peers of their transfers are ranks in the group."""
    store_address: Internal[int] = 0
    """Address of its ``c10d::Store``, 0 where that is not known."""
    status: Internal[GroupStatus | None] = None
    """The numbers that the group itself keeps."""
    queued: Internal[tuple[QueuedWork, ...]] = ()
    nccl: Internal[int] = 0
    """Address of its ``c10d::ProcessGroupNCCL``, 0 where it has none."""

    @property
    def label(self) -> str:
        """The group as people call it; torch describes groups that nobody described as "undefined"."""
        return self.name if self.description in ("", "undefined") else self.description


class ProcessGroupReader:
    """Reads them, by the variables of torch.distributed's module. ``problems`` says what could not be read."""

    def __init__(self, memory: Memory, layout: Layout, symbolizer: Symbolizer, distributed: PyRef) -> None:
        self._memory = memory
        self._layout = layout
        self._space = Space(memory, layout)
        self._symbolizer = symbolizer
        self._distributed = distributed
        self._strings = containers.string_reader(memory, layout)
        self.problems: list[GdbextError] = []

    def groups(self) -> list[ProcessGroup]:
        """All groups, in the order in which they were made; empty before init_process_group()."""
        found = [self._distributed[name] for name in (GROUP_MAP, GROUP_NAMES, GROUP_RANKS)]
        faults = [each.fault for each in found if each.fault]
        self.problems += faults[:1]
        if faults or not found[0]:
            return []
        groups, names, ranks = (dict(each.items(GROUP_LIMIT).checked()) if each else {} for each in found)
        read = (self._named(group, value, names.get(group), ranks.get(group)) for group, value in groups.items())
        return [group for group in read if group]

    def _named(self, group: PyRef, kinds: PyRef, name: PyRef | None, ranks: PyRef | None) -> ProcessGroup | None:
        try:
            backends = kinds.elements(1).checked()
            backend = backends[0].read(text) if backends else None
            return self._group(group, name.read(text) if name else "", backend, _members(ranks) if ranks else ())
        except GdbextError as error:
            self.problems.append(error)
            return None

    def _group(self, group: PyRef, name: str, backend: str | None, ranks: tuple[int, ...]) -> ProcessGroup:
        unread = ProcessGroup(name, "", backend, None, None, ranks, None, None, None)
        try:
            found = structures.ProcessGroupStruct(self._space, self._memory.u64(group.address + _HEAD))
            of_nccl = self._backend(found, GROUP)
            gloo, nccl = self._of_gloo(found), self._of_nccl(of_nccl)
            described = found.pg_desc_ if found.has(structures.ProcessGroupStruct.pg_desc_) else 0
            rank, size = found.rank_, found.size_
            if not 0 <= rank < size <= RANK_LIMIT:
                raise BadData(f"the process group at {found.address:#x} says that it is rank {rank} of {size}")
            return unread._replace(
                description=self._strings.read(described, 4096) if described else "",
                rank=rank,
                size=size,
                store_address=found.store_ if found.has(structures.ProcessGroupStruct.store_) else 0,
                status=nccl.status if nccl else self._status(gloo),
                queued=(*map(_of_device, nccl.works if nccl else ()), *self._queued(gloo)),
                nccl=of_nccl,
            )
        except GdbextError as error:
            self.problems.append(error)
            return unread

    def _backend(self, group: structures.ProcessGroupStruct, name: str) -> int:
        """The first of the group's backends that is of that class; 0 where none is."""
        table = containers.hash_table(self._layout)
        backends = containers.hash_entries(self._memory, group.deviceTypeToBackend_, table, 2, _BACKEND_LIMIT)
        return next((backend for _device, backend in backends if self.class_of(backend) == name), 0)

    def _of_gloo(self, group: structures.ProcessGroupStruct) -> structures.GlooGroup | None:
        backend = self._backend(group, structures.GlooGroup.OF)
        return structures.GlooGroup(self._space, backend) if backend else None

    def _of_nccl(self, backend: int) -> NcclGroup | None:
        """The group as NCCL's own backend has it; None where there is none, or nobody measured that of this release."""
        if not backend or self._layout.match != "exact":
            return None
        members = store.nccl_groups(
            self._layout.version, containers.has_cxx11_abi(self._layout), store.data_of(self._memory.architecture.name)
        )
        if not members:
            return None
        try:
            return read_group(self._memory, self._layout, members, backend)
        except GdbextError as error:
            self.problems.append(error)
            return None

    def class_of(self, address: int) -> str:
        """The C++ class of an object with virtual functions, "" where its vtable has no name. Raises MemoryFault."""
        names = self._symbolizer.names_at(self._memory.u64(address) - _VTABLE_START)
        found = (demangle(name) for name in names)
        return next((name[len(_VTABLE) :] for name in found if name.startswith(_VTABLE)), "")

    def _status(self, backend: structures.GlooGroup | None) -> GroupStatus | None:
        if not backend or not backend.has(structures.GlooGroup.pgStatus_):
            return None
        return read_status(backend.pgStatus_)

    def _queued(self, backend: structures.GlooGroup | None) -> Iterator[QueuedWork]:
        """The operations that the group's threads work on, then those in their queue."""
        if not backend:
            return
        start, count = containers.vector_span(self._memory, backend.workInProgress_, 8, _WORK_LIMIT)
        for address in self._memory.words(start, count) if count else ():
            if address:
                yield self._work(address, in_progress=True)
        for address in self._queue(backend):
            yield self._work(address, in_progress=False)

    def _queue(self, backend: structures.GlooGroup) -> list[int]:
        """The pointers in a ``std::deque``: blocks of 512 bytes (bits/stl_deque.h, _GLIBCXX_DEQUE_BUF_SIZE)."""
        deque = backend.workQueue_
        current, block_end, node, end = deque.first, deque.block_end, deque.block, deque.end
        found: list[int] = []
        while current != end and len(found) < _WORK_LIMIT:
            found.append(self._memory.u64(current))
            current += 8
            if current == block_end and current != end:
                node += 8
                current = self._memory.u64(node)
                block_end = current + 512
        return found

    def _work(self, address: int, in_progress: bool) -> QueuedWork:
        work = structures.GlooWork(self._space, address)
        if not work.has(structures.GlooWork.seq_):
            raise LayoutError("this version's work has no sequence number")
        title = self._strings.read(work.profilingTitle_, 4096)
        timeout = work.timeout_ if work.has(structures.GlooWork.timeout_) else 0
        return QueuedWork(work.seq_, title, timeout, in_progress)


def _of_device(work: NcclWork) -> QueuedWork:
    """NCCL does not say when an operation starts."""
    return QueuedWork(work.seq, f"nccl:{work.op}", work.timeout_ms, in_progress=False, began=work.began)


def _members(ranks: PyRef) -> tuple[int, ...]:
    """The ranks in the job by the rank in the group: a dict from the one to the other."""
    found = {own.read(integer): rank.read(integer) for rank, own in ranks.items(RANK_LIMIT).checked()}
    if not all(0 <= rank < RANK_LIMIT for rank in found.values()):
        raise BadData(f"the members of a process group at {ranks.address:#x} are no ranks")
    return tuple(found[rank] for rank in sorted(found))


_NESTING = 16
"""PrefixStores around a store: each group and each of its backends adds one."""


def store_address(memory: Memory, layout: Layout, groups: ProcessGroupReader, address: int) -> str | None:
    """``tcp://host:port``, ``file:///path``, ``hash`` (in this process); None where it cannot be read."""
    try:
        return _read(memory, layout, groups, address)
    except GdbextError:
        return None


def _read(memory: Memory, layout: Layout, groups: ProcessGroupReader, address: int) -> str | None:
    strings, space = containers.string_reader(memory, layout), Space(memory, layout)
    for _ in range(_NESTING):
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
