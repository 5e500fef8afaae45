"""PyTorch's own bookkeeping of CUDA streams: the streams of its pools, and each thread's current streams.

c10/cuda/CUDAStream.cpp, seen in 2.6.0 and 2.15.0: ``streams[priorities][devices][32]`` of cudaStream_t, made when a
device's first stream is asked for; ``current_streams``, of each thread, a number for each device. A number is 0 for the
default stream, the cudaStream_t itself for a stream from elsewhere (even), else 1 + 2 · (1 + priority) + 32 · index.
The sizes of two arrays prove how many devices they are for; nothing is read where they disagree.
"""

from __future__ import annotations

from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.record import Record
from gdbext.errors import BadData
from gdbext.torch.state.setting_sources import (
    CUDA_CURRENT_STREAMS,
    CUDA_DEVICE_COUNT,
    CUDA_STREAM_COUNTERS,
    CUDA_STREAMS,
)
from gdbext.torch.state.thread_variable import ThreadVariables
from gdbext.torch.torch_symbol import TorchSymbol

_PRIORITIES = 4
"""The constant max_compile_time_stream_priorities of c10/cuda/CUDAStream.h."""
_PER_POOL = 32
_TYPE_MASK = 15
_POINTER, _COUNTER = 8, 4
_MOST_DEVICES = 256
_WORD = (1 << 64) - 1


class CudaStream(Record):
    """A stream of PyTorch's. ``number`` is torch.cuda.Stream.stream_id, ``handle`` the cudaStream_t."""

    number: int
    device: int
    handle: int


class CudaStreams:
    """Reads it from one process, each thing once. Raises BadData where this build has it otherwise."""

    def __init__(self, symbolizer: Symbolizer, variables: ThreadVariables) -> None:
        self._symbolizer = symbolizer
        self._variables = variables
        self._memory = variables.memory
        self._pools: dict[int, CudaStream] | None = None

    def device_count(self) -> int:
        """The number of devices that the process uses; 0 while no stream was asked for. Raises MemoryFault."""
        address, _ = self._place(CUDA_DEVICE_COUNT, 1)
        count = int.from_bytes(self._memory.read(address, 1), "little", signed=True)
        return max(count, 0)

    def pool(self) -> dict[int, CudaStream]:
        """The streams that PyTorch made, by their handles. Raises MemoryFault."""
        if self._pools is None:
            self._pools = {each.handle: each for each in self._read_pools()}
        return self._pools

    def _read_pools(self) -> list[CudaStream]:
        address, devices = self._arrays()
        count = min(self.device_count(), devices)
        found = []
        for priority in range(_PRIORITIES if count else 0):
            start = address + priority * devices * _PER_POOL * _POINTER
            raw = self._memory.read(start, count * _PER_POOL * _POINTER)
            for place in range(count * _PER_POOL):
                handle = int.from_bytes(raw[place * _POINTER : (place + 1) * _POINTER], "little")
                if handle:
                    device, index = divmod(place, _PER_POOL)
                    found.append(CudaStream(_number(priority, index), device, handle))
        return found

    def current(self, thread_pointer: int) -> tuple[CudaStream, ...]:
        """The current stream of a thread on each device; empty where the thread has not asked for any.

        Raises ThreadLocalUnknown, MemoryFault.
        """
        raw = self._variables.of(thread_pointer).read(CUDA_CURRENT_STREAMS, _POINTER)
        array = int.from_bytes(raw, "little") if raw is not None else 0
        if not array:
            return ()
        numbers = [self._memory.i64(array + _POINTER * device) for device in range(self.device_count())]
        return tuple(self._stream(number, device) for device, number in enumerate(numbers))

    def _stream(self, number: int, device: int) -> CudaStream:
        """The stream with that number. Raises BadData where there is none."""
        if not number & 1:
            return CudaStream(number, device, number & _WORD)  # the default stream, or one from elsewhere
        priority, index = (number >> 1 & _TYPE_MASK) - 1, number >> 5
        address, devices = self._arrays()
        if not 0 <= priority < _PRIORITIES or not 0 <= index < _PER_POOL or device >= devices:
            raise BadData(f"a stream with the number {number:#x} makes no sense")
        place = ((priority * devices + device) * _PER_POOL + index) * _POINTER
        return CudaStream(number, device, self._memory.u64(address + place))

    def _arrays(self) -> tuple[int, int]:
        """The array of streams: its address, and for how many devices it is."""
        address, size = self._place(CUDA_STREAMS, _POINTER)
        _, counters = self._place(CUDA_STREAM_COUNTERS, _COUNTER)
        devices = size // (_PRIORITIES * _PER_POOL * _POINTER)
        if devices * _PRIORITIES * _COUNTER != counters or not 0 < devices <= _MOST_DEVICES:
            raise BadData("the arrays of CUDA streams have other sizes in this build")
        return address, devices

    def _place(self, variable: TorchSymbol, least: int) -> tuple[int, int]:
        """Address and size of a variable."""
        found = variable.find(self._symbolizer)
        if found is None or found[1].size < least:
            raise BadData(f"{variable.library} has no {variable.names[0]}")
        module, symbol = found
        return module.base + symbol.vaddr, symbol.size


def _number(priority: int, index: int) -> int:
    """torch.cuda.Stream.stream_id of a stream of a pool."""
    return 1 | (priority + 1) << 1 | index << 5
