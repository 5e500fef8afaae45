"""The statistics of CUDA's caching allocator, as torch.cuda.memory_stats() gives them, from its own structures.

c10/cuda/CUDACachingAllocator.cpp and c10/core/CachingDeviceAllocator.h, 2.6.0 to 2.15.0. The allocator has a vector of
one object for each device. No header says where; the function that returns the statistics loads it from there. Such an
object begins with a mutex, and the statistics are behind it.

What ``dispatch-info --memory`` reports: what the tensors hold that Python knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from gdbext.engine.layouts.declarations import Space
from gdbext.engine.layouts.layout import Layout
from gdbext.engine.process.code_reader import member_loads
from gdbext.engine.process.memory import FieldLayout, Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.record import Record
from gdbext.engine.vocabulary import Hexadecimal, Section
from gdbext.errors import BadData, LayoutError
from gdbext.tools.info.library_settings import DEVICES
from gdbext.torch.state.setting_sources import CUDA_ALLOCATOR_IN_USE, CUDA_STATISTICS, NATIVE_CUDA_ALLOCATOR
from gdbext.torch.state.setting_structures import AllocatorCounts, AllocatorStatistics
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_objects import ClassNames, plain_class
from gdbext.torch.values.value_structures import StdMutex


class HeldMemory(Record):
    """The storages of tensors of one dtype on one device; one that tensors of several dtypes share counts as the
    first that was found."""

    dtype: str
    device: str
    storages: int
    bytes: int


class LargeStorage(Record):
    """A storage with one of its tensors: ``tensor`` is like "f32[4, 4] cpu", ``name`` "Linear.weight" where it is a
    parameter or buffer of a module, "" where it is not known to be."""

    address: Hexadecimal
    bytes: int
    tensor: str
    name: str


class CudaMemory(Record):
    """The counts of CUDA's caching allocator for one device, by the names of torch.cuda.memory_stats()."""

    device: int
    statistics: Mapping[str, int]


@dataclass(frozen=True)
class MemorySection(Section):
    """``tensors`` and ``objects`` are how many were looked at, of Python's."""

    name: ClassVar[str] = "memory"
    objects: int
    tensors: int
    storages: int
    bytes: int
    held: tuple[HeldMemory, ...]
    """Blocks with the most bytes first."""
    largest: tuple[LargeStorage, ...]
    truncated: tuple[str, ...]
    problems: tuple[str, ...]
    cuda: tuple[CudaMemory, ...] = ()
    """Devices that were used, where a build for CUDA is loaded."""


_POOLS = ("all", "small_pool", "large_pool")
"""enum struct StatType: the first is the sum of the others."""
_GETTER_SIZE = 256
_THIS = 1
"""The object is the second argument: before it stands where the result goes."""


class CudaAllocator:
    """Reads it. Raises LayoutError, BadData, MemoryFault."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, layout: Layout) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._layout = layout
        self._space = Space(memory, layout)

    def devices(self) -> tuple[CudaMemory, ...]:
        """The counts of each device; none where CUDA was not initialised."""
        allocator = self._allocator()
        first, count = self._vector(allocator)
        # A recursive mutex is as large as another one: both are a pthread_mutex_t.
        statistics = StdMutex.shape(self._layout).size
        found = []
        for device in range(count):
            address = self._memory.u64(first + 8 * device)
            if address:
                found.append(CudaMemory(device, self._statistics(address + statistics)))
        return tuple(found)

    def _allocator(self) -> int:
        """The allocator in use, if it is PyTorch's own."""
        variable = CUDA_ALLOCATOR_IN_USE.address(self._symbolizer)
        allocator = self._memory.u64(variable) if variable is not None else 0
        if not allocator:
            raise BadData("CUDA's allocator is not there yet")
        names = [plain_class(name) for name in ClassNames(self._memory, self._symbolizer).of(allocator)]
        if NATIVE_CUDA_ALLOCATOR not in names:
            raise BadData(f"the allocator of CUDA is {names[0] if names else 'of an unknown class'}, which is not read")
        return allocator

    def _vector(self, allocator: int) -> tuple[int, int]:
        """The objects of devices: (address of the first pointer, how many)."""
        getter = CUDA_STATISTICS.address(self._symbolizer)
        if getter is None:
            raise BadData("the function that returns the statistics is not found")
        architecture = self._memory.architecture
        code = architecture.decode(self._memory.read(getter, _GETTER_SIZE), getter)
        for offset in member_loads(architecture, code, _THIS):
            with suppress(BadData):  # what it loads there is another member
                return vector_span(self._memory, allocator + offset, 8, DEVICES)
        raise BadData("where the allocator keeps its devices is not known in this build")

    def _statistics(self, address: int) -> Mapping[str, int]:
        """Statistics by the names of torch.cuda.memory_stats(). Raises BadData where sums do not agree: then a thread
        is changing them, or this is something else."""
        shape, counts = AllocatorStatistics.shape(self._layout), AllocatorCounts.shape(self._layout)
        found: dict[str, int] = {}
        for field in shape.fields.values():
            at = address + field.offset
            if field.size == counts.size * len(_POOLS) and field.type.startswith("std::array<"):
                pools = [self._counts(at + index * counts.size) for index in range(len(_POOLS))]
                self._check(field.name, pools)
                for pool, values in zip(_POOLS, pools):
                    found.update({f"{field.name}.{pool}.{name}": value for name, value in values.items()})
            elif field.size == counts.size and field.type.endswith("::Stat"):
                found.update({f"{field.name}.{name}": value for name, value in self._counts(at).items()})
            elif _is_number(field):
                found[field.name] = self._memory.i64(at)
        if not found:
            raise LayoutError(f"the layout of {shape.name} has nothing that is known")
        return found

    def _counts(self, address: int) -> dict[str, int]:
        counts = AllocatorCounts(self._space, address)
        return {member.path: counts.value(member) for member in AllocatorCounts.members()}

    @staticmethod
    def _check(name: str, pools: list[dict[str, int]]) -> None:
        for each in (member.path for member in AllocatorCounts.members()):
            values = [pool[each] for pool in pools]
            if min(values) < 0 or (each != "peak" and values[0] != values[1] + values[2]):
                raise BadData(f"the statistics of a device make no sense: {name}.{each} is {values}")


def _is_number(field: FieldLayout) -> bool:
    return field.size == 8 and field.type == "long int"
