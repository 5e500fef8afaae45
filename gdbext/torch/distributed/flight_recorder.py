"""c10d's flight recorder in memory: the operations that each process group of this process issued.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorderDetail.hpp, logger.hpp of 2.13.0. The buffer is a
ring of ``max_entries_`` entries; once it is full, ``next_`` is the oldest. Nothing here is locked: an entry that is
being written while the process runs may be torn, one that makes no sense costs that entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Member, Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, GdbextError, LayoutError
from gdbext.torch.assumed_symbols import FLIGHT_RECORDER, FLIGHT_RECORDER_OF_NCCL, FLIGHT_RECORDERS_OF_HOOKS
from gdbext.torch.distributed import group_structures as structures
from gdbext.torch.values.containers import hash_entries, string_reader, tree_nodes, vector_span
from gdbext.torch.values.value_structures import SmallVector, String

ENTRY_LIMIT = 1 << 17
"""Entries of a buffer that are read; the default is 2,000."""
GROUP_LIMIT = 1 << 16
RANK_LIMIT = 1 << 20
_TENSOR_LIMIT = 4096


class GroupStatus(NamedTuple):
    """A ``ProcessGroupStatus``: the last sequence numbers; -1 before the first operation."""

    enqueued: int
    started: int
    completed: int


class TracebackFrame(NamedTuple):
    """A ``CapturedTraceback::PyFrame``: the address of a code object, and an offset into its bytecode."""

    code: int
    offset: int


class RecordedEntry(NamedTuple):
    """One ``FlightRecorder::Entry``, with its names. Times are nanoseconds since the epoch."""

    id: int
    pg_id: int
    group: str
    description: str
    collective_seq: int
    p2p_seq: int
    op_id: int
    profiling_name: str
    traceback: int
    """Address of the ``CapturedTraceback``, 0 without one."""
    created: int
    timeout_ms: int
    is_p2p: bool
    duration_ms: float | None
    started: int | None
    completed: int | None
    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_sizes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]
    """Types as ``c10::toString(ScalarType)`` has them: ``Float``."""
    thread_id: int
    thread_name: str
    retired: bool

    @property
    def state(self) -> str:
        """The recorder's own word. Gloo's operations stay "scheduled" until they are retired."""
        if self.completed is not None:
            return "completed"
        return "scheduled" if self.started is None else "started"

    @property
    def is_pending(self) -> bool:
        return not self.retired and self.completed is None


def find_recorders(memory: Memory, symbolizer: Symbolizer) -> list[int]:
    """Addresses of the recorders of Gloo and NCCL that have issued an operation. Raises MemoryFault."""
    pointers = (symbol.address(symbolizer) for symbol in (FLIGHT_RECORDER, FLIGHT_RECORDER_OF_NCCL))
    return [address for pointer in pointers if pointer and (address := memory.u64(pointer))]


def find_recorders_of_hooks(memory: Memory, symbolizer: Symbolizer, layout: Layout) -> list[int]:
    """Addresses of the recorders (since 2.15) of backends whose operations a hook records, such as NCCL's new groups:
    the values of the ``std::unordered_map<std::string, FlightRecorder*>`` that getFlightRecorder() fills. Raises
    MemoryFault, BadData, LayoutError."""
    registry = FLIGHT_RECORDERS_OF_HOOKS.address(symbolizer)
    if not registry:
        return []
    words = String.shape(layout).size // 8 + 1
    entries = hash_entries(memory, layout, registry, words, 64)
    return [address for *_name, address in entries if address]


class FlightRecorder:
    """The recorder at an address. Raises LayoutError at construction if the layout does not have it."""

    def __init__(self, memory: Memory, layout: Layout, address: int) -> None:
        self._memory = memory
        self._layout = layout
        self._space = Space(memory, layout)
        self._recorder = structures.Recorder(self._space, address)
        self._entry_size = structures.RecorderEntry.size(self._space)
        self._strings = string_reader(memory, layout)
        self._dtypes = [name for name, _size in layout.dispatch("scalar_types")]
        self.problems: list[GdbextError] = []  # reasons why entries or groups are missing

    @property
    def is_enabled(self) -> bool:
        """True if the recorder is on. Raises MemoryFault."""
        return self._recorder.enabled_

    @property
    def comm_lib_version(self) -> str:
        """The version of the communication library, "" if it was not recorded. Raises MemoryFault, BadData."""
        return self._strings.read(self._recorder.comm_lib_version_)

    def statuses(self) -> dict[int, GroupStatus]:
        """``pg_id`` of a group → its last sequence numbers. Raises MemoryFault, BadData."""
        statuses: dict[int, GroupStatus] = {}
        for pair in self._map_pairs(structures.StatusNode, structures.Recorder.all_pg_status_):
            number, address = self._memory.words(pair, 2)
            statuses[number] = read_status(structures.ProcessGroupStatus(self._space, address))
        return statuses

    def groups(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """(name, description) → the members' ranks in the job. Raises MemoryFault, BadData."""
        ranks = {}
        for pair in self._map_pairs(structures.RanksNode, structures.Recorder.pg_name_to_ranks_):
            vector = pair + structures.GroupName.size(self._space)
            start, count = vector_span(self._memory, vector, 8, RANK_LIMIT)
            ranks[self._group_name(pair)] = self._memory.words(start, count) if count else ()
        return ranks

    def _map_pairs(
        self, node: type[structures.StatusNode | structures.RanksNode], member: Member[int]
    ) -> Iterator[int]:
        """Addresses of the (key, value) pairs in ``member`` of the recorder: a ``std::map`` whose nodes have that
        type."""
        offset = node._M_storage.offset(self._space)
        return (address + offset for address in tree_nodes(self._memory, self._recorder.place(member), GROUP_LIMIT))

    def _group_name(self, address: int) -> tuple[str, str]:
        """(name, description) of the group whose ``std::tuple`` of both is at ``address``: libstdc++ keeps the last
        element first (bits/tuple)."""
        size = structures.GroupName.size(self._space) // 2
        return self._strings.read(address + size), self._strings.read(address)

    def entries(self, pending_only: bool = False) -> list[RecordedEntry]:
        """The entries since the last reset (or the pending ones), oldest first. Raises MemoryFault, BadData."""
        start, count = vector_span(self._memory, self._recorder.entries_, self._entry_size, ENTRY_LIMIT)
        first = self._recorder.next_
        if first > count:
            raise BadData(f"the flight recorder's next entry is {first} of {count}")
        epoch = self._recorder.reset_epoch_ if structures.RecorderEntry.reset_epoch_.is_in(self._layout) else None
        entries = []
        for index in (*range(first, count), *range(first)):
            entry = structures.RecorderEntry(self._space, start + index * self._entry_size)
            try:
                if epoch is None or entry.reset_epoch_ == epoch:
                    entries.append(self._read_entry(entry))
            except LayoutError:
                raise
            except GdbextError as error:
                self.problems.append(error)
        return [entry for entry in entries if not pending_only or entry.is_pending]

    def _read_entry(self, entry: structures.RecorderEntry) -> RecordedEntry:
        """One entry. Raises MemoryFault, BadData, LayoutError."""
        group, description = self._group_name(entry.pg_name_)
        # sizes of inputs and outputs are all in one list, cut by the number of dimensions of each tensor
        sizes = iter(self._numbers(entry.sizes_, _TENSOR_LIMIT * 8))
        cut = []
        for place in (entry.input_dims_, entry.output_dims_):
            dimensions = self._numbers(place, _TENSOR_LIMIT)
            if any(not 0 <= count <= 64 for count in dimensions):
                raise BadData(f"the flight recorder has a tensor of {max(dimensions)} dimensions")
            cut.append(tuple(tuple(islice(sizes, count)) for count in dimensions))
        duration = structures.OptionalFloat(self._space, entry.duration_)
        started, completed = (
            structures.OptionalLong(self._space, place)
            for place in (entry.time_discovered_started_, entry.time_discovered_completed_)
        )
        name = entry.thread_name_ if entry.has(structures.RecorderEntry.thread_name_) else 0
        return RecordedEntry(
            id=entry.id_,
            pg_id=entry.pg_id_,
            group=group,
            description=description,
            collective_seq=entry.collective_seq_id_,
            p2p_seq=entry.p2p_seq_id_,
            op_id=entry.op_id_,
            profiling_name=self._strings.read(entry.profiling_name_, 4096),
            traceback=entry.traceback_,
            created=entry.time_created_,
            timeout_ms=entry.timeout_ms_,
            is_p2p=entry.isP2P_,
            duration_ms=duration.value_of if duration.is_engaged else None,
            started=started.value_of if started.is_engaged else None,
            completed=completed.value_of if completed.is_engaged else None,
            input_sizes=cut[0],
            input_dtypes=self._dtype_names(entry.input_dtypes_),
            output_sizes=cut[1],
            output_dtypes=self._dtype_names(entry.output_dtypes_),
            thread_id=entry.thread_id_ if entry.has(structures.RecorderEntry.thread_id_) else 0,
            thread_name=self._strings.read(name, 4096) if name else "",
            retired=entry.retired_,
        )

    def _numbers(self, address: int, limit: int) -> tuple[int, ...]:
        """The elements, at most ``limit``, of the ``c10::SmallVector<int64_t, N>`` at ``address``, which is laid out
        the same for every N (c10/util/SmallVector.h)."""
        vector = SmallVector(self._space, address)
        count = vector.Size
        if count > limit:
            raise BadData(f"the flight recorder has a list of {count} sizes")
        words = self._memory.words(vector.BeginX, count) if count else ()
        return tuple(word - (1 << 64) if word >> 63 else word for word in words)

    def _dtype_names(self, address: int) -> tuple[str, ...]:
        """The names ("Float") of the types in the ``std::vector<c10::ScalarType>`` at ``address``."""
        start, count = vector_span(self._memory, address, 1, _TENSOR_LIMIT)
        numbers = self._memory.read(start, count) if count else b""
        return tuple(self._dtypes[dtype] if dtype < len(self._dtypes) else f"dtype {dtype}" for dtype in numbers)

    def traceback(self, entry: RecordedEntry) -> list[TracebackFrame]:
        """The Python frames that issued an operation, innermost first. Raises MemoryFault, BadData, LayoutError."""
        if not entry.traceback:
            return []
        frames = structures.CapturedTraceback(self._space, entry.traceback).frames_
        start, count = vector_span(self._memory, frames, structures.PyFrame.size(self._space), 4096)
        return [
            TracebackFrame(frame.code, frame.lasti) for frame in structures.PyFrame.array(self._space, start, count)
        ]


def read_status(status: structures.ProcessGroupStatus) -> GroupStatus:
    """The last sequence numbers of a group. Raises MemoryFault, LayoutError."""
    return GroupStatus(status.lastEnqueuedSeq, status.lastStartedSeq, status.lastCompletedSeq)
