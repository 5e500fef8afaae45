"""c10d's flight recorder in memory: the operations that each process group of this process issued.

Source: torch/csrc/distributed/c10d/FlightRecorder.hpp, FlightRecorderDetail.hpp, logger.hpp of 2.13.0. The buffer is a
ring of ``max_entries_`` entries, of which ``next_`` is the oldest once it is full. Nothing here is locked: an
entry that is being written while the process runs may be torn, one that makes no sense costs that entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from gdbext.engine.layouts.layout import Layout
from gdbext.engine.process.memory import Memory, StructView
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.record import Record
from gdbext.errors import BadData, GdbextError, LayoutError
from gdbext.torch.assumed_symbols import FLIGHT_RECORDER, FLIGHT_RECORDER_OF_NCCL, FLIGHT_RECORDERS_OF_HOOKS
from gdbext.torch.values.containers import hash_entries, hash_table, string_reader, tree_nodes, vector_span

RECORDER = "c10d::FlightRecorder"
ENTRY_LIMIT = 1 << 17
"""Entries of a buffer that are read; the default is 2,000."""
GROUP_LIMIT = 1 << 16
RANK_LIMIT = 1 << 20
_DIMENSIONS = 64
_TENSORS = 4096
_FRAMES = 4096
_BACKEND_LIMIT = 64


class GroupStatus(Record):
    """A ``ProcessGroupStatus``: the last sequence numbers; -1 before the first operation."""

    enqueued: int
    started: int
    completed: int


class TracebackFrame(Record):
    """A ``CapturedTraceback::PyFrame``: the address of a code object, and an offset into its bytecode."""

    code: int
    offset: int


class RecordedEntry(Record):
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
    return [address for place in places if place is not None and (address := memory.u64(place))]


def find_recorders_of_hooks(memory: Memory, symbolizer: Symbolizer, layout: Layout) -> list[int]:
    """Recorders since 2.15 of backends whose operations a hook records, as NCCL's new groups are: the values of the
    ``std::unordered_map<std::string, FlightRecorder*>`` that getFlightRecorder() fills.

    Raises MemoryFault, BadData, LayoutError.
    """
    registry = FLIGHT_RECORDERS_OF_HOOKS.address(symbolizer)
    if registry is None:
        return []
    words = layout.struct("std::string").size // 8 + 1
    entries = hash_entries(memory, registry, hash_table(layout), words, _BACKEND_LIMIT)
    return [address for *_name, address in entries if address]


class FlightRecorder:
    """The recorder at an address. Raises LayoutError at construction where the layout does not know it."""

    def __init__(self, memory: Memory, layout: Layout, address: int) -> None:
        self._memory = memory
        self._layout = layout
        self._view = StructView(memory, address, layout.struct(RECORDER))
        self._entry = layout.struct(f"{RECORDER}::Entry")
        self._strings = string_reader(memory, layout)
        self._dtypes = [name for name, _size in layout.dispatch("scalar_types")]
        self.problems: list[GdbextError] = []
        """Reasons why entries or groups are missing."""

    @property
    def is_enabled(self) -> bool:
        """True if anything is recorded. Raises MemoryFault."""
        return bool(self._view.u8("enabled_"))

    @property
    def comm_lib_version(self) -> str:
        """The version of the communication library, "" where it was not recorded. Raises MemoryFault, BadData."""
        return self._strings.read(self._view.address("comm_lib_version_"))

    def statuses(self) -> dict[int, GroupStatus]:
        """Statuses by the group's number (``pg_id``). Raises MemoryFault, BadData."""
        found: dict[int, GroupStatus] = {}
        for value in self._map_values("all_pg_status_"):
            number, address = self._memory.words(value, 2)
            found[number] = read_status(self._memory, self._layout, address)
        return found

    def groups(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """(name, description) → the members' ranks in the job. Raises MemoryFault, BadData."""
        size = self._layout.struct(f"{RECORDER}::pg_name").size
        found = {}
        for value in self._map_values("pg_name_to_ranks_"):
            start, count = vector_span(self._memory, value + size, 8, RANK_LIMIT)
            found[self._group_name(value)] = self._memory.words(start, count) if count else ()
        return found

    def _map_values(self, member: str) -> Iterator[int]:
        """Addresses of the pairs of a ``std::map`` member."""
        node = self._layout.struct(f"{RECORDER}::{member}.node")
        for address in tree_nodes(self._memory, self._view.address(member), GROUP_LIMIT):
            yield address + node.offset("_M_storage")

    def _group_name(self, address: int) -> tuple[str, str]:
        """A ``std::tuple<std::string, std::string>``: libstdc++ keeps the last element first (bits/tuple)."""
        size = self._layout.struct(f"{RECORDER}::pg_name").size // 2
        return self._strings.read(address + size), self._strings.read(address)

    def entries(self, pending_only: bool = False) -> list[RecordedEntry]:
        """All entries since the last reset, oldest first. Raises MemoryFault, BadData."""
        start, count = vector_span(self._memory, self._view.address("entries_"), self._entry.size, ENTRY_LIMIT)
        first = self._view.u64("next_")
        if first > count:
            raise BadData(f"the flight recorder's next entry is {first} of {count}")
        epoch = self._view.u64("reset_epoch_") if "reset_epoch_" in self._entry.fields else None
        order = (*range(first, count), *range(first))
        found = (self._try_entry(start + index * self._entry.size, epoch) for index in order)
        return [entry for entry in found if entry is not None and (entry.is_pending or not pending_only)]

    def _try_entry(self, address: int, epoch: int | None) -> RecordedEntry | None:
        view = StructView(self._memory, address, self._entry)
        try:
            if epoch is not None and view.u64("reset_epoch_") != epoch:
                return None
            return self._read_entry(view)
        except LayoutError:
            raise
        except GdbextError as error:
            self.problems.append(error)
            return None

    def _read_entry(self, view: StructView) -> RecordedEntry:
        group, description = self._group_name(view.address("pg_name_"))
        inputs, outputs = self._sizes(view)
        return RecordedEntry(
            id=view.u64("id_"),
            pg_id=view.u64("pg_id_"),
            group=group,
            description=description,
            collective_seq=view.u64("collective_seq_id_"),
            p2p_seq=view.u64("p2p_seq_id_"),
            op_id=view.u64("op_id_"),
            profiling_name=self._strings.read(view.address("profiling_name_"), 4096),
            traceback=view.pointer("traceback_"),
            created=view.i64("time_created_"),
            timeout_ms=view.i64("timeout_ms_"),
            is_p2p=bool(view.u8("isP2P_")),
            duration_ms=self._duration(view),
            started=self._time(view, "time_discovered_started_"),
            completed=self._time(view, "time_discovered_completed_"),
            input_sizes=inputs,
            input_dtypes=self._dtype_names(view.address("input_dtypes_")),
            output_sizes=outputs,
            output_dtypes=self._dtype_names(view.address("output_dtypes_")),
            thread_id=view.u64("thread_id_") if "thread_id_" in self._entry.fields else 0,
            thread_name=self._optional_text(view, "thread_name_"),
            retired=bool(view.u8("retired_")),
        )

    def _optional_text(self, view: StructView, name: str) -> str:
        return self._strings.read(view.address(name), 4096) if name in self._entry.fields else ""

    def _time(self, view: StructView, name: str) -> int | None:
        """Read a ``std::optional<c10::time_t>`` at an address."""
        shape = self._layout.struct("std::optional<long int>")
        at = view.address(name)
        if not self._memory.u8(at + shape.offset("_M_payload._M_engaged")):
            return None
        return self._memory.i64(at + shape.offset("_M_payload._M_payload._M_value"))

    def _duration(self, view: StructView) -> float | None:
        """Read a ``std::optional<float>`` at an address."""
        import struct

        shape = self._layout.struct("std::optional<float>")
        at = view.address("duration_")
        if not self._memory.u8(at + shape.offset("_M_payload._M_engaged")):
            return None
        value: float = struct.unpack("<f", self._memory.read(at + shape.offset("_M_payload._M_payload._M_value"), 4))[0]
        return value

    def _sizes(self, view: StructView) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        """Sizes of inputs and of outputs: all in one list, cut by the number of dimensions of each tensor."""
        sizes = iter(self._numbers(view.address("sizes_"), _TENSORS * 8))
        cut = []
        for name in ("input_dims_", "output_dims_"):
            dimensions = self._numbers(view.address(name), _TENSORS)
            if any(not 0 <= count <= _DIMENSIONS for count in dimensions):
                raise BadData(f"a tensor of {max(dimensions)} dimensions in the flight recorder")
            cut.append(tuple(tuple(islice(sizes, count)) for count in dimensions))
        return cut[0], cut[1]

    def _numbers(self, address: int, limit: int) -> tuple[int, ...]:
        """A ``c10::SmallVector<int64_t, N>``; where it begins is the same for every N (c10/util/SmallVector.h)."""
        vector = StructView(self._memory, address, self._layout.struct("c10::SmallVector<long int, 4>"))
        count = vector.u32("Size")
        if count > limit:
            raise BadData(f"a list of {count} sizes in the flight recorder")
        words = self._memory.words(vector.pointer("BeginX"), count) if count else ()
        return tuple(word - (1 << 64) if word >> 63 else word for word in words)

    def _dtype_names(self, address: int) -> tuple[str, ...]:
        start, count = vector_span(self._memory, address, 1, _TENSORS)
        numbers = self._memory.read(start, count) if count else b""
        return tuple(self._dtypes[n] if n < len(self._dtypes) else f"dtype {n}" for n in numbers)

    def traceback(self, entry: RecordedEntry) -> list[TracebackFrame]:
        """The Python frames that issued it, innermost first. Raises MemoryFault, BadData, LayoutError."""
        if not entry.traceback:
            return []
        frame = self._layout.struct("torch::CapturedTraceback::PyFrame")
        view = StructView(self._memory, entry.traceback, self._layout.struct("torch::CapturedTraceback"))
        start, count = vector_span(self._memory, view.address("frames_"), frame.size, _FRAMES)
        places = (StructView(self._memory, start + index * frame.size, frame) for index in range(count))
        return [TracebackFrame(place.pointer("code"), place.i32("lasti")) for place in places]


def read_status(memory: Memory, layout: Layout, address: int) -> GroupStatus:
    """The ``ProcessGroupStatus`` at an address. Raises MemoryFault, LayoutError."""
    view = StructView(memory, address, layout.struct("c10d::ProcessGroupStatus"))
    return GroupStatus(view.i64("lastEnqueuedSeq"), view.i64("lastStartedSeq"), view.i64("lastCompletedSeq"))
