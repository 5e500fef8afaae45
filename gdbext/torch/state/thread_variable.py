"""Thread-local variables of libtorch by name, for one thread: their bytes, also where the thread never used them.

PyTorch's own bookkeeping of CUDA streams: the streams of its pools, and each thread's current streams.

c10/cuda/CUDAStream.cpp, seen in 2.6.0 and 2.15.0: ``streams[priorities][devices][32]`` of cudaStream_t, made when a
device's first stream is asked for; ``current_streams``, of each thread, a number for each device. A number is 0 for the
default stream, the cudaStream_t itself for a stream from elsewhere (even), else 1 + 2 · (1 + priority) + 32 · index.
The sizes of two arrays prove how many devices they are for; nothing is read where they disagree.
"""

from __future__ import annotations

from gdbext.engine.formats.elf_header import PT_TLS
from gdbext.engine.formats.symbol_table import STT_TLS, Symbol
from gdbext.engine.glibc.thread_locals import ThreadLocals, ThreadLocalUntouched
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.record import Record
from gdbext.errors import BadData
from gdbext.torch.state.setting_sources import (
    CUDA_CURRENT_STREAMS,
    CUDA_DEVICE_COUNT,
    CUDA_STREAM_COUNTERS,
    CUDA_STREAMS,
)
from gdbext.torch.torch_symbol import TorchSymbol

_GUARD = "__tls_guard"
_GUARD_REACH = 32
"""The guard of a translation unit's dynamically initialised thread-locals is the variable that GCC places before
them, no farther away than their alignment."""


class ThreadVariables:
    """Reads thread-local variables of any thread. One for all threads of a target."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self.memory = memory
        self._symbolizer = symbolizer
        self._locals = ThreadLocals(memory, symbolizer.modules)
        self._guards: dict[tuple[str, int], int | None] = {}

    def of(self, thread_pointer: int) -> VariablesOfThread:
        """Those of the thread with its control block at ``thread_pointer``."""
        return VariablesOfThread(self, thread_pointer)

    def block(self, thread_pointer: int, module: Module, guard: int | None) -> int | None:
        """The module's block in a thread; None where the variable that ``guard`` is for was not constructed in it.

        Raises ThreadLocalUntouched, ThreadLocalUnknown, MemoryFault.
        """
        block = self._locals.block(thread_pointer, module)
        return None if guard is not None and not self.memory.u8(block + guard) else block

    def find(self, variable: TorchSymbol) -> tuple[Module, Symbol]:
        """The module of a variable and its symbol. Raises BadData."""
        found = variable.find(self._symbolizer)
        if found is None or found[1].type != STT_TLS:
            raise BadData(f"{variable.library} has no thread-local variable {variable.names[0]}")
        return found

    def guard(self, module: Module, symbol: Symbol) -> int | None:
        """The offset of the guard byte that says whether the variable's constructor ran; None where it needs none."""
        key = (module.name, symbol.vaddr)
        if key not in self._guards:
            index = self._symbolizer.index(module)
            near = [
                guard.vaddr
                for guard in (index.lookup(_GUARD) if index is not None else ())
                if guard.type == STT_TLS and 0 < symbol.vaddr - guard.vaddr <= _GUARD_REACH
            ]
            self._guards[key] = max(near, default=None)
        return self._guards[key]


class VariablesOfThread:
    """The thread-local variables of one thread."""

    def __init__(self, variables: ThreadVariables, thread_pointer: int) -> None:
        self._variables = variables
        self._thread_pointer = thread_pointer

    @property
    def memory(self) -> Memory:
        """The memory of the target."""
        return self._variables.memory

    def read(self, variable: TorchSymbol, size: int) -> bytes | None:
        """The first ``size`` bytes of the variable.

        Its initial bytes where the thread has not used the module's thread-locals; None where its constructor has
        not run in this thread: then it has the value that the source gives it. Raises BadData when there is no such
        variable or it is smaller, ThreadLocalUnknown, MemoryFault.
        """
        module, symbol = self._variables.find(variable)
        return self._read(module, symbol, size, self._variables.guard(module, symbol))

    def read_constant(self, variable: TorchSymbol, size: int) -> bytes:
        """The same of a variable whose initial value is a constant: no constructor has to run, and a guard that stands
        near belongs to another one. Raises as ``read``."""
        module, symbol = self._variables.find(variable)
        return self._read(module, symbol, size, None) or bytes(size)

    def read_local(self, module: Module, symbol: Symbol, size: int) -> bytes | None:
        """The same of a function's own variable whose initial value is a constant. Raises as ``read``."""
        return self._read(module, symbol, size, None)

    def _read(self, module: Module, symbol: Symbol, size: int, guard: int | None) -> bytes | None:
        if symbol.size < size:
            raise BadData(f"{symbol.name} has {symbol.size} bytes, not {size}")
        try:
            block = self._variables.block(self._thread_pointer, module, guard)
        except ThreadLocalUntouched:
            return None if guard is not None else _initial(module, symbol.vaddr, size)
        return None if block is None else self._variables.memory.read(block + symbol.vaddr, size)

    def address(self, variable: TorchSymbol) -> int | None:
        """Address of the variable in that thread; None where the thread has none (yet). Raises as ``read`` does."""
        module, symbol = self._variables.find(variable)
        try:
            block = self._variables.block(self._thread_pointer, module, self._variables.guard(module, symbol))
        except ThreadLocalUntouched:
            return None
        return None if block is None else block + symbol.vaddr


def _initial(module: Module, offset: int, size: int) -> bytes:
    """The bytes that a thread's copy starts with: .tdata of the file, zeros behind it. Raises BadData."""
    image = module.image
    segment = None if image is None else next((one for one in image.segments if one.type == PT_TLS), None)
    if image is None or segment is None or offset + size > segment.memsz:
        raise BadData(f"the initial thread-local data of {module.name} cannot be read")
    stored = max(0, min(size, segment.filesz - offset))
    raw = image.read(segment.vaddr + offset, stored) if stored else b""
    if raw is None:
        raise BadData(f"the initial thread-local data of {module.name} cannot be read")
    return raw + bytes(size - len(raw))


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
