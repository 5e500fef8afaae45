"""c10d's flight recorder in memory: the operations that each process group of this process issued.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorderDetail.hpp, logger.hpp of 2.13.0. The buffer is a
ring of ``max_entries_`` entries, of which ``next_`` is the oldest once it is full. Nothing here is locked: an
entry that is being written while the process runs may be torn, one that makes no sense costs that entry.
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
from gdbext.torch.distributed.group_structures import (
    CapturedTraceback,
    GroupName,
    OptionalFloat,
    OptionalLong,
    ProcessGroupStatus,
    PyFrame,
    RanksNode,
    Recorder,
    RecorderEntry,
    StatusNode,
)
from gdbext.torch.values.containers import hash_entries, hash_table, string_reader, tree_nodes, vector_span
from gdbext.torch.values.value_structures import SmallVector, String

ENTRY_LIMIT = 1 << 17
"""Entries of a buffer that are read; the default is 2,000."""
GROUP_LIMIT = 1 << 16
RANK_LIMIT = 1 << 20
_DIMENSIONS = 64
_TENSORS = 4096
_FRAMES = 4096
_BACKEND_LIMIT = 64


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
        """The recorder's own word. Gloo's operations stay "scheduled": it notes when they are retired only."""
        if self.completed is not None:
            return "completed"
        return "scheduled" if self.started is None else "started"

    @property
    def is_pending(self) -> bool:
        """Issued, and neither retired nor seen to be completed."""
        return not self.retired and self.completed is None


def find_recorders(memory: Memory, symbolizer: Symbolizer) -> list[int]:
    """Addresses of the recorders of Gloo and of NCCL, as far as these have issued an operation. Raises MemoryFault."""
    places = (symbol.address(symbolizer) for symbol in (FLIGHT_RECORDER, FLIGHT_RECORDER_OF_NCCL))
    return [address for place in places if place and (address := memory.u64(place))]


def find_recorders_of_hooks(memory: Memory, symbolizer: Symbolizer, layout: Layout) -> list[int]:
    """Recorders since 2.15 of backends whose operations a hook records, as NCCL's new groups are: the values of the
    ``std::unordered_map<std::string, FlightRecorder*>`` that getFlightRecorder() fills.

    Raises MemoryFault, BadData, LayoutError.
    """
    registry = FLIGHT_RECORDERS_OF_HOOKS.address(symbolizer)
    if not registry:
        return []
    words = String.shape(layout).size // 8 + 1
    entries = hash_entries(memory, registry, hash_table(layout), words, _BACKEND_LIMIT)
    return [address for *_name, address in entries if address]


class FlightRecorder:
    """The recorder at an address. Raises LayoutError at construction where the layout does not know it."""

    def __init__(self, memory: Memory, layout: Layout, address: int) -> None:
        self._memory = memory
        self._layout = layout
        self._space = Space(memory, layout)
        self._recorder = Recorder(self._space, address)
        self._entry_size = RecorderEntry.size(self._space)
        self._strings = string_reader(memory, layout)
        self._dtypes = [name for name, _size in layout.dispatch("scalar_types")]
        self.problems: list[GdbextError] = []
        """Reasons why entries or groups are missing."""

    @property
    def is_enabled(self) -> bool:
        """True if anything is recorded. Raises MemoryFault."""
        return self._recorder.enabled_

    @property
    def comm_lib_version(self) -> str:
        """The version of the communication library, "" where it was not recorded. Raises MemoryFault, BadData."""
        return self._strings.read(self._recorder.comm_lib_version_)

    def statuses(self) -> dict[int, GroupStatus]:
        """Statuses by the group's number (``pg_id``). Raises MemoryFault, BadData."""
        found: dict[int, GroupStatus] = {}
        for value in self._map_values(Recorder.all_pg_status_):
            number, address = self._memory.words(value, 2)
            found[number] = read_status(ProcessGroupStatus(self._space, address))
        return found

    def groups(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """(name, description) → the members' ranks in the job. Raises MemoryFault, BadData."""
        size = GroupName.size(self._space)
        found = {}
        for value in self._map_values(Recorder.pg_name_to_ranks_):
            start, count = vector_span(self._memory, value + size, 8, RANK_LIMIT)
            found[self._group_name(value)] = self._memory.words(start, count) if count else ()
        return found

    def _map_values(self, member: Member[int]) -> Iterator[int]:
        """Addresses of the pairs of a ``std::map`` member."""
        value = (StatusNode if member is Recorder.all_pg_status_ else RanksNode)._M_storage.offset(self._space)
        for address in tree_nodes(self._memory, self._recorder.place(member), GROUP_LIMIT):
            yield address + value

    def _group_name(self, address: int) -> tuple[str, str]:
        """A ``std::tuple<std::string, std::string>``: libstdc++ keeps the last element first (bits/tuple)."""
        size = GroupName.size(self._space) // 2
        return self._strings.read(address + size), self._strings.read(address)

    def entries(self, pending_only: bool = False) -> list[RecordedEntry]:
        """All entries since the last reset, oldest first. Raises MemoryFault, BadData."""
        start, count = vector_span(self._memory, self._recorder.entries_, self._entry_size, ENTRY_LIMIT)
        first = self._recorder.next_
        if first > count:
            raise BadData(f"the flight recorder's next entry is {first} of {count}")
        epoch = self._recorder.reset_epoch_ if RecorderEntry.reset_epoch_.is_in(self._layout) else None
        order = (*range(first, count), *range(first))
        found = (self._try_entry(start + index * self._entry_size, epoch) for index in order)
        return [entry for entry in found if entry and (entry.is_pending or not pending_only)]

    def _try_entry(self, address: int, epoch: int | None) -> RecordedEntry | None:
        entry = RecorderEntry(self._space, address)
        try:
            if epoch is not None and entry.reset_epoch_ != epoch:
                return None
            return self._read_entry(entry)
        except LayoutError:
            raise
        except GdbextError as error:
            self.problems.append(error)
            return None

    def _read_entry(self, entry: RecorderEntry) -> RecordedEntry:
        group, description = self._group_name(entry.pg_name_)
        inputs, outputs = self._sizes(entry)
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
            duration_ms=self._duration(entry),
            started=self._time(entry.time_discovered_started_),
            completed=self._time(entry.time_discovered_completed_),
            input_sizes=inputs,
            input_dtypes=self._dtype_names(entry.input_dtypes_),
            output_sizes=outputs,
            output_dtypes=self._dtype_names(entry.output_dtypes_),
            thread_id=entry.thread_id_ if entry.has(RecorderEntry.thread_id_) else 0,
            thread_name=self._optional_text(entry, RecorderEntry.thread_name_),
            retired=entry.retired_,
        )

    def _optional_text(self, entry: RecorderEntry, member: Member[int]) -> str:
        return self._strings.read(entry.place(member), 4096) if entry.has(member) else ""

    def _time(self, address: int) -> int | None:
        """Read a ``std::optional<c10::time_t>`` at an address."""
        time = OptionalLong(self._space, address)
        return time.value_of if time.is_engaged else None

    def _duration(self, entry: RecorderEntry) -> float | None:
        duration = OptionalFloat(self._space, entry.duration_)
        return duration.value_of if duration.is_engaged else None

    def _sizes(self, entry: RecorderEntry) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Sizes of inputs and of outputs: all in one list, cut by the number of dimensions of each tensor."""
        sizes = iter(self._numbers(entry.sizes_, _TENSORS * 8))
        cut = []
        for place in (entry.input_dims_, entry.output_dims_):
            dimensions = self._numbers(place, _TENSORS)
            if any(not 0 <= count <= _DIMENSIONS for count in dimensions):
                raise BadData(f"a tensor of {max(dimensions)} dimensions in the flight recorder")
            cut.append(tuple(tuple(islice(sizes, count)) for count in dimensions))
        return cut[0], cut[1]

    def _numbers(self, address: int, limit: int) -> tuple[int, ...]:
        """A ``c10::SmallVector<int64_t, N>``; where it begins is the same for every N (c10/util/SmallVector.h)."""
        vector = SmallVector(self._space, address)
        count = vector.Size
        if count > limit:
            raise BadData(f"a list of {count} sizes in the flight recorder")
        words = self._memory.words(vector.BeginX, count) if count else ()
        return tuple(word - (1 << 64) if word >> 63 else word for word in words)

    def _dtype_names(self, address: int) -> tuple[str, ...]:
        start, count = vector_span(self._memory, address, 1, _TENSORS)
        numbers = self._memory.read(start, count) if count else b""
        return tuple(self._dtypes[n] if n < len(self._dtypes) else f"dtype {n}" for n in numbers)

    def traceback(self, entry: RecordedEntry) -> list[TracebackFrame]:
        """The Python frames that issued it, innermost first. Raises MemoryFault, BadData, LayoutError."""
        if not entry.traceback:
            return []
        frames = CapturedTraceback(self._space, entry.traceback).frames_
        start, count = vector_span(self._memory, frames, PyFrame.size(self._space), _FRAMES)
        return [TracebackFrame(frame.code, frame.lasti) for frame in PyFrame.array(self._space, start, count)]


def read_status(status: ProcessGroupStatus) -> GroupStatus:
    """The numbers of a ``ProcessGroupStatus``. Raises MemoryFault, LayoutError."""
    return GroupStatus(status.lastEnqueuedSeq, status.lastStartedSeq, status.lastCompletedSeq)
