"""PyTorch's own bookkeeping of CUDA in host memory: its streams, its caching allocator and its graphs.

c10/cuda/CUDAStream.cpp, seen in 2.6.0 and 2.15.0: ``streams[priorities][devices][32]`` of cudaStream_t, made when a
device's first stream is requested; ``current_streams``, of each thread, a number for each device. A number is 0 for the
default stream, the cudaStream_t itself for a stream from elsewhere (even), else 1 + 2 · (1 + priority) + 32 · index.
The sizes of two arrays prove how many devices they are for; nothing is read if they disagree.

c10/cuda/CUDACachingAllocator.cpp and c10/core/CachingDeviceAllocator.h, 2.6.0 to 2.15.0. The allocator has a vector of
one object for each device. No header says where; the function that returns the statistics loads it from there. Such an
object begins with a mutex, the statistics are behind it, then two pools, the set of active blocks, the captures in
progress, and the events of freed blocks by stream. The offsets of these differ: the set is known by its number of
elements, the events by what they lead to.

ATen/cuda/CUDAGraph.h, 2.6.0, 2.11.0 and 2.15.0: a graph begins with two handles, flags and a number of its capture. Its
pool has a number of which one half is zero. The filter of a capture that the allocator has is a lambda of the graph.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.code_reader import member_loads
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, GdbextError, LayoutError
from gdbext.torch.memoized import memoized
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.state.setting_structures import AllocatorCounts, AllocatorStatistics
from gdbext.torch.state.thread_variable import ThreadVariables
from gdbext.torch.torch_symbol import TorchSymbol
from gdbext.torch.values.containers import map_slots, read_map_header, vector_span
from gdbext.torch.values.cpp_objects import ClassNames, plain_class
from gdbext.torch.values.value_structures import StdMutex

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Hexadecimal

_PRIORITIES = 4
"""The constant max_compile_time_stream_priorities of c10/cuda/CUDAStream.h."""
_PER_POOL = 32
_TYPE_MASK = 15
_POINTER, _COUNTER = 8, 4
_MOST_DEVICES = 256


class CudaStream(NamedTuple):
    """A CUDA stream."""

    number: int
    """torch.cuda.Stream.stream_id: the module's docstring says how it is made."""
    device: int
    handle: int
    """The cudaStream_t."""


class CudaStreams:
    """Reads the streams of one process. Raises BadData if they are different in this build."""

    def __init__(self, symbolizer: Symbolizer, variables: ThreadVariables) -> None:
        self._symbolizer = symbolizer
        self._variables = variables
        self._memory = variables.memory

    def device_count(self) -> int:
        """The number of devices that the process uses; 0 while no stream was requested. Raises MemoryFault."""
        address, _ = self._address_and_size(sources.CUDA_DEVICE_COUNT, 1)
        return max(int.from_bytes(self._memory.read(address, 1), "little", signed=True), 0)

    @memoized
    def pool(self) -> dict[int, CudaStream]:
        """cudaStream_t → the stream, for each that PyTorch made. Raises MemoryFault."""
        address, devices = self._array()
        count = min(self.device_count(), devices)
        streams = {}
        for priority in range(_PRIORITIES if count else 0):
            handles = self._memory.words(address + priority * devices * _PER_POOL * _POINTER, count * _PER_POOL)
            for position, handle in enumerate(handles):
                if handle:
                    device, index = divmod(position, _PER_POOL)
                    streams[handle] = CudaStream(1 | priority + 1 << 1 | index << 5, device, handle)
        return streams

    def current(self, thread_pointer: int) -> tuple[CudaStream, ...]:
        """The current stream, on each device, of the thread with that thread pointer; () if it has not requested any.
        Raises ThreadLocalUnknown, MemoryFault."""
        raw = self._variables.of(thread_pointer).read(sources.CUDA_CURRENT_STREAMS, _POINTER)
        array = int.from_bytes(raw, "little")
        if not array:
            return ()
        numbers = [self._memory.i64(array + _POINTER * device) for device in range(self.device_count())]
        return tuple(self._stream(number, device) for device, number in enumerate(numbers))

    def _stream(self, number: int, device: int) -> CudaStream:
        """The stream of ``device`` with that number (as in CudaStream). Raises BadData if there is none."""
        if not number & 1:  # the default stream, or the handle of one that PyTorch did not make
            return CudaStream(number, device, number & (1 << 64) - 1)
        priority, index = (number >> 1 & _TYPE_MASK) - 1, number >> 5
        address, devices = self._array()
        if not 0 <= priority < _PRIORITIES or not 0 <= index < _PER_POOL or device >= devices:
            raise BadData(f"there is no stream with the number {number:#x}")
        offset = ((priority * devices + device) * _PER_POOL + index) * _POINTER
        return CudaStream(number, device, self._memory.u64(address + offset))

    def _array(self) -> tuple[int, int]:
        """(address, number of devices that it is for) of the array of streams. Raises BadData."""
        address, size = self._address_and_size(sources.CUDA_STREAMS, _POINTER)
        _, counters = self._address_and_size(sources.CUDA_STREAM_COUNTERS, _COUNTER)
        devices = size // (_PRIORITIES * _PER_POOL * _POINTER)
        if devices * _PRIORITIES * _COUNTER != counters or not 0 < devices <= _MOST_DEVICES:
            raise BadData("the arrays of CUDA streams have unexpected sizes in this build")
        return address, devices

    def _address_and_size(self, variable: TorchSymbol, least: int) -> tuple[int, int]:
        """(address, size in bytes) of a variable. Raises BadData if there is none, or a smaller one than ``least``."""
        module, symbol = variable.find(self._symbolizer) or (None, None)
        if not module or not symbol or symbol.size < least:
            raise BadData(f"{variable.library} has no {variable.names[0]}")
        return module.base + symbol.vaddr, symbol.size


class CudaMemory(NamedTuple):
    """The counts of CUDA's caching allocator for one device, by the names of torch.cuda.memory_stats()."""

    device: int
    statistics: Mapping[str, int]


_POOLS = ("all", "small_pool", "large_pool")
"""enum struct StatType: the first is the sum of the others."""


class CudaAllocator:
    """Reads CUDA's caching allocator. Raises LayoutError, BadData, MemoryFault."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, layout: Layout) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._layout = layout
        self._space = Space(memory, layout)

    def devices(self) -> tuple[CudaMemory, ...]:
        """The counts of each device; none if CUDA was not initialized."""
        return tuple(CudaMemory(device, counts) for device, counts, _ in self._devices())

    def pending(self) -> tuple[PendingMemory, ...]:
        """The blocks of each device that wait for events, and the captures that it has."""
        return tuple(_Pending(self._space, *device).read() for device in self._devices())

    def _devices(self) -> Iterator[tuple[int, Mapping[str, int], int]]:
        """(index of a device, its counts by name, the address behind them in the allocator's object for it)."""
        variable = sources.CUDA_ALLOCATOR_IN_USE.address(self._symbolizer)
        allocator = self._memory.u64(variable) if variable else 0
        if not allocator:
            raise BadData("CUDA's allocator does not exist yet")
        names = [plain_class(name) for name in ClassNames(self._memory, self._symbolizer).of(allocator)]
        if sources.NATIVE_CUDA_ALLOCATOR not in names:
            raise BadData(f"CUDA's allocator is {names[0] if names else 'of an unknown class'}, which is not supported")
        getter = sources.CUDA_STATISTICS.address(self._symbolizer)
        if not getter:
            raise BadData("the function that returns CUDA's memory statistics is not found")
        architecture = self._memory.architecture
        code = architecture.decode(self._memory.read(getter, 256), getter)
        # the object is the second argument: the first one is where the result goes
        for offset in member_loads(architecture, code, 1):
            with suppress(BadData):  # what it loads there is another member
                first, count = vector_span(self._memory, allocator + offset, 8, _MOST_DEVICES)
                break
        else:
            raise BadData("the place of the allocator's devices is unknown in this build")
        # A recursive mutex is as large as another one: both are a pthread_mutex_t.
        statistics = StdMutex.shape(self._layout).size
        for device in range(count):
            address = self._memory.u64(first + 8 * device)
            if address:
                counts = address + statistics
                yield device, self._statistics(counts), counts + AllocatorStatistics.shape(self._layout).size

    def _statistics(self, address: int) -> Mapping[str, int]:
        """The ``DeviceStats`` at ``address`` by the names of torch.cuda.memory_stats(). Raises BadData if sums do not
        agree: a thread is changing them, or there are none."""
        shape, counts = AllocatorStatistics.shape(self._layout), AllocatorCounts.shape(self._layout)
        statistics: dict[str, int] = {}
        for field in shape.fields.values():
            start = address + field.offset
            if field.size == counts.size * len(_POOLS) and field.type.startswith("std::array<"):
                pools = [self._counts(start + index * counts.size) for index in range(len(_POOLS))]
                for name in pools[0]:
                    whole, *parts = (pool[name] for pool in pools)
                    if min(whole, *parts) < 0 or (name != "peak" and whole != sum(parts)):
                        reason = f"{field.name}.{name} is {[whole, *parts]}"
                        raise BadData(f"the statistics of a device are inconsistent: {reason}")
                for pool, values in zip(_POOLS, pools):
                    statistics.update({f"{field.name}.{pool}.{name}": value for name, value in values.items()})
            elif field.size == counts.size and field.type.endswith("::Stat"):
                statistics.update({f"{field.name}.{name}": value for name, value in self._counts(start).items()})
            elif field.size == 8 and field.type == "long int":
                statistics[field.name] = self._memory.i64(start)
        if not statistics:
            raise LayoutError(f"the layout of {shape.name} has no known member")
        return statistics

    def _counts(self, address: int) -> dict[str, int]:
        """The members of the ``AllocatorCounts`` at an address, by name."""
        counts = AllocatorCounts(self._space, address)
        return {member.path: counts.value(member) for member in AllocatorCounts.members()}


class CudaGraph(NamedTuple):
    """A CUDA graph of PyTorch's (torch.cuda.CUDAGraph)."""

    address: Hexadecimal
    device: int
    stream_id: int
    """The stream on which it was captured, or is being captured."""
    pool: tuple[int, int]
    """The pool of its memory (torch.cuda.CUDAGraph.pool)."""


_POOL, _STREAM = struct.Struct("<QQ"), struct.Struct("<Hxxxxxxq")
"""A pool's number; a stream: the type and number of its device, and its own number."""
_GRAPH_PLACES = ((32, 48), (40, 56), (32, 72))
"""Offsets of both in a graph; 2.15 has a vector between them."""


def _may_be_stream(number: int) -> bool:
    """True if ``number`` can be a CudaStream's: of a pool (odd), 0, or a pointer (2: the default stream of each
    thread)."""
    of_pool = 0 < (number >> 1 & _TYPE_MASK) <= _PRIORITIES and 0 <= number >> 5 < _PER_POOL
    return of_pool if number & 1 else number in (0, 2) or 0x1000 <= number < 1 << 57


def cuda_graph(memory: Memory, address: int) -> CudaGraph:
    """The graph whose C++ object is at ``address``, found by the forms of its pool's number and of its stream. Raises
    BadData if there is none, MemoryFault."""
    for pool_at, stream_at in _GRAPH_PLACES:
        first, second = _POOL.unpack(memory.read(address + pool_at, _POOL.size))
        device, stream = _STREAM.unpack(memory.read(address + stream_at, _STREAM.size))
        if bool(first) is not bool(second) and device & 0xFF == _CUDA_DEVICE and stream and _may_be_stream(stream):
            return CudaGraph(address, device >> 8, stream, (first, second))
    raise BadData(f"there is no CUDA graph at {address:#x}")


class PendingEvent(NamedTuple):
    """An event that a freed block of the allocator waits for: another stream used it (record_stream)."""

    stream_id: int
    """The number of that stream (torch.cuda.Stream.stream_id)."""
    event: Hexadecimal | None
    """The cudaEvent_t; None where a thread has taken it out, to wait for it (synchronize_and_free_events)."""
    block: Hexadecimal
    """The block's address on the device."""
    bytes: int


class PendingMemory(NamedTuple):
    """The freed memory of one device that its caching allocator cannot use again yet."""

    device: int
    events: tuple[PendingEvent, ...]
    captures: int | None
    """Number of captures of CUDA graphs that are under way, and other uses of private pools: the allocator queries no
    event meanwhile. None if unknown."""
    retries: int
    """Number of times that cudaMalloc failed and was tried again after cached memory was freed."""
    ooms: int
    """Number of out-of-memory errors."""
    graphs: tuple[CudaGraph, ...] = ()
    """The graphs of these captures that are known."""


_POINTERS, _BLOCK, _EVENT = struct.Struct("<Qq10Q"), struct.Struct("<QQQQ?"), struct.Struct("<32xQQ")
"""A stream with its ``std::deque``; a block's size, requested size, pool, address and whether it is allocated; a
``std::unique_ptr`` with a ``std::function`` as deleter, and the block."""
_STREAM_AND_DEQUE, _CAPTURE, _CUDA_DEVICE = 96, 48, 1
_BLOCK_HEAD, _BLOCK_SHIFTS = 48, (0, 8)
"""A block begins with device, stream and a set of streams; 2.15 has a number behind them."""
_BLOCK_COUNT = 56
"""Bytes from a block's size to the number of its events: behind its flags are its two neighbors."""
_REACH, _PER_NODE = 2048, 10
"""Bytes of the object in which the set is looked for; elements of a node of the deque (512 // 48)."""
_MOST_EVENTS, _SAMPLE, _MOST_CAPTURES = 1024, 256, 64


class _Pending:
    """Reads the PendingMemory of one device from the allocator's object for it, whose members have no known offsets.
    Raises BadData, MemoryFault."""

    def __init__(self, space: Space, device: int, counts: Mapping[str, int], start: int) -> None:
        """``counts`` are the statistics in that object, ``start`` is the address behind them."""
        self._memory = space.memory
        self._device = device
        self._counts = counts
        self._start = start
        self._shift = 0  # bytes by which a block's size is farther from its start in this build
        self._freed = 0  # number of active blocks that are not allocated any more

    def read(self) -> PendingMemory:
        """The memory that waits; none for a device without active blocks, whose captures cannot be found either."""
        retries, ooms = self._counts.get("num_alloc_retries", 0), self._counts.get("num_ooms", 0)
        if not self._counts.get("active.all.current"):
            return PendingMemory(self._device, (), None, retries, ooms)
        behind = self._active_blocks() + 32
        first, captures = vector_span(self._memory, behind, _CAPTURE)
        events = self._events(behind)
        if self._freed and not events and not captures:
            raise BadData(f"the events that {self._freed} freed blocks of cuda:{self._device} wait for are unknown")
        graphs = []
        for number in range(min(captures, _MOST_CAPTURES)):
            # a capture is a pool's number (two words) and a filter, a lambda of the graph
            *pool, lambda_object = self._memory.words(first + _CAPTURE * number, 3)
            with suppress(GdbextError):  # another use of a pool
                graph = cuda_graph(self._memory, lambda_object)
                graphs += [graph] if (graph.pool, graph.device) == (tuple(pool), self._device) else []
        return PendingMemory(self._device, events, captures, retries, ooms, tuple(graphs))

    def _active_blocks(self) -> int:
        """The address of the set of active blocks: a hash set of as many elements as the statistics count, whose blocks
        have a known layout."""
        active = self._counts["active.all.current"]
        for address in range(self._start, self._start + _REACH, 8):
            with suppress(GdbextError):
                if read_map_header(self._memory, address).elements == active:
                    entries = map_slots(self._memory, address, 8)
                    blocks = [int.from_bytes(entry.raw[:8], "little") for entry in entries]
                    self._shift = self._shift_of(blocks, address)
                    return address
        raise BadData("the place of the allocator's active blocks is unknown in this build")

    def _shift_of(self, blocks: list[int], limit: int) -> int:
        """The layout of blocks, as the shift of the member ``size`` (``_BLOCK_SHIFTS``): with the right one the sizes
        of ``blocks`` add up to the count in the statistics; of many, a sample has one in a pool that is in the object,
        before the address ``limit``. Raises BadData, MemoryFault."""
        for shift in _BLOCK_SHIFTS:
            rows = [self._block(block, shift) for block in blocks[:_SAMPLE]]
            total = sum(size for size, *_ in rows)
            is_whole = len(rows) == len(blocks) and total == self._counts.get("active_bytes.all.current")
            if is_whole or (len(rows) < len(blocks) and any(self._start <= pool < limit for _, _, pool, *_ in rows)):
                self._freed = sum(not allocated for *_, allocated in rows)
                return shift
        raise BadData("the layout of the allocator's blocks is unknown in this build")

    def _block(self, address: int, shift: int) -> tuple[int, int, int, int, bool]:
        """(size, requested size, address of its pool, address on the device, True if allocated) of the block at
        ``address``, in the layout with that ``shift``."""
        raw = self._memory.read(address + _BLOCK_HEAD + shift, _BLOCK.size)
        block: tuple[int, int, int, int, bool] = _BLOCK.unpack(raw)
        return block

    def _events(self, start: int) -> tuple[PendingEvent, ...]:
        """The events in the first hash map behind ``start`` whose values are deques of events by stream; () without
        one."""
        for address in range(start, start + _REACH // 4, 8):
            with suppress(GdbextError):
                if read_map_header(self._memory, address).elements:
                    entries = map_slots(self._memory, address, _STREAM_AND_DEQUE)
                    rows = [_POINTERS.unpack(entry.raw) for entry in entries]
                    return tuple(event for row in rows for event in self._events_of(row))
        return ()

    def _events_of(self, row: tuple[int, ...]) -> Iterator[PendingEvent]:
        """The events of one stream, oldest first, by the words of ``row``: the stream and a ``std::deque``. Raises
        BadData if these are something else: an event's block is freed and counts its events, unless the event was taken
        out."""
        kind, number, _, _, item, first, last, node, end, _, _, final = row
        device = kind & 0xFFFF  # the rest is padding
        of_device = device == _CUDA_DEVICE | self._device << 8 and _may_be_stream(number)
        if not of_device or not first <= item <= last or not node <= final:
            raise BadData("a map of other things")
        for _ in range(_MOST_EVENTS):
            if item == last and node < final:
                node += 8
                item = self._memory.u64(node)
                last = item + _PER_NODE * 48
            if item == end:
                return
            event, block = _EVENT.unpack(self._memory.read(item, _EVENT.size))
            size, _, _, address, allocated = self._block(block, self._shift)
            count = self._memory.i32(block + _BLOCK_HEAD + self._shift + _BLOCK_COUNT)
            if not allocated and 0 < count <= _MOST_EVENTS and self._memory.u8(block) == self._device:
                handle = self._memory.u64(event) if event else None
                yield PendingEvent(number, handle, address, size)
            elif event:
                raise BadData("no freed block that waits for an event")
            item += 48
        raise BadData("the events of a stream are too many")
