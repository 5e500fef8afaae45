"""The statistics of CUDA's caching allocator, from made-up memory."""

from __future__ import annotations

import struct

import pytest

from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import BadData
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.state.cuda_state import CudaAllocator, cuda_graph
from support.fakes.fake_target import FakeTarget

ALLOCATOR, VARIABLE, GETTER, DEVICE, VTABLE, ELEMENTS = 0x10000, 0x20000, 0x30000, 0x40000, 0x50000, 0x60000
VECTOR, PAGE = 0x20, 0x1000
CODE = bytes.fromhex("488b4e20488b4628c3")
"""mov 0x20(%rsi), %rcx; mov 0x28(%rsi), %rax; ret"""
NATIVE = "_ZTVN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE"
ASYNCHRONOUS = "_ZTVN3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE"
KINDS = ("current", "peak", "allocated", "freed")
ARRAY, STAT = "std::array<c10::CachingAllocator::Stat, 3>", "c10::CachingAllocator::Stat"


class Process:
    """A process with one device, which is also its symbols and its layout."""

    def __init__(self) -> None:
        self.vtable = NATIVE
        self.elements = [DEVICE]
        self.pools = [(30, 50, 60, 30), (10, 30, 20, 10), (20, 40, 40, 20)]
        self.names = {sources.CUDA_ALLOCATOR_IN_USE.names[0]: VARIABLE, sources.CUDA_STATISTICS.names[0]: GETTER}

    def address_of(self, name: str, library: str | None) -> int | None:  # noqa: ARG002 - as Symbolizer
        return self.names.get(name)

    def names_at(self, address: int) -> tuple[str, ...]:
        return (self.vtable,) if address == VTABLE else ()

    def struct(self, name: str) -> StructLayout:
        fields = (
            FieldLayout("allocated_bytes", 0, 96, ARRAY),
            FieldLayout("by_pools", 96, 32, "ska::flat_hash_map<int>"),
            FieldLayout("oversize_segments", 128, 32, STAT),
            FieldLayout("num_ooms", 160, 8, "long int"),
        )
        members = {each: FieldLayout(each, 8 * index, 8) for index, each in enumerate(KINDS)}
        return {
            "std::mutex": StructLayout("std::mutex", 40, {}),
            "c10::CachingAllocator::Stat": StructLayout(STAT, 32, members),
            "c10::CachingDeviceAllocator::DeviceStats": StructLayout("", 168, {each.name: each for each in fields}),
        }[name]

    def devices(self) -> list[tuple[int, dict[str, int]]]:
        size = 8 * len(self.elements)
        statistics = b"".join(struct.pack("<4q", *pool) for pool in self.pools)
        regions = {
            VARIABLE: struct.pack("<Q", ALLOCATOR),
            ALLOCATOR: struct.pack("<Q", VTABLE + 16)
            + bytes(VECTOR - 8)
            + struct.pack("<3Q", ELEMENTS, ELEMENTS + size, ELEMENTS + size),
            ELEMENTS: b"".join(struct.pack("<Q", each) for each in self.elements) + bytes(8),
            GETTER: CODE.ljust(256, b"\xcc"),
            DEVICE: bytes(40) + statistics + bytes(32) + struct.pack("<4q", 1, 2, 3, 2) + struct.pack("<q", 4),
        }
        memory = Memory(FakeTarget({start: content.ljust(PAGE, b"\0") for start, content in regions.items()}))
        found = CudaAllocator(memory, self, self).devices()  # type: ignore[arg-type]
        return [(each.device, dict(each.statistics)) for each in found]


def test_statistics_by_the_names_of_memory_stats() -> None:
    numbers = {"allocated_bytes.all": (30, 50, 60, 30), "allocated_bytes.small_pool": (10, 30, 20, 10)}
    numbers |= {"allocated_bytes.large_pool": (20, 40, 40, 20), "oversize_segments": (1, 2, 3, 2)}
    expected = {f"{name}.{kind}": number for name, row in numbers.items() for kind, number in zip(KINDS, row)}
    process = Process()
    assert process.devices() == [(0, {**expected, "num_ooms": 4})]
    process.elements = [0, DEVICE]
    assert [device for device, _ in process.devices()] == [1], "the first was not used"
    process.elements = []
    assert process.devices() == []
    process = Process()
    process.pools[1] = (11, 30, 20, 10)
    with pytest.raises(BadData, match=r"allocated_bytes.current is \[30, 11, 20\]"):
        process.devices()


def test_other_allocators_and_none_yet() -> None:
    process = Process()
    process.vtable = ASYNCHRONOUS
    with pytest.raises(BadData, match="the allocator of CUDA is CudaMallocAsyncAllocator, which is not read"):
        process.devices()
    process.vtable = "_Z3foo"
    with pytest.raises(BadData, match="is of an unknown class"):
        process.devices()
    del process.names[sources.CUDA_ALLOCATOR_IN_USE.names[0]]
    with pytest.raises(BadData, match="not there yet"):
        process.devices()


@pytest.mark.parametrize(("place", "between"), [(32, 0), (40, 0), (32, 24)])
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((0, 3, 0x101, 0x23), (1, 0x23, (0, 3))),
        ((9, 0, 0xDEAD0001, 0x7F00), (0, 0x7F00, (9, 0))),  # padding, and a stream from elsewhere
        ((9, 3, 1, 0x23), None),
        ((0, 0, 1, 0x23), None),
        ((0, 3, 0, 0x23), None),  # of the CPU
        ((0, 3, 1, 0), None),
        ((0, 3, 1, 1), None),  # no stream has this number
        ((0, 3, 1, 0x403), None),
        ((0, 3, 1, 6), None),
    ],
)
def test_a_graph(
    place: int, between: int, words: tuple[int, ...], found: tuple[int, int, tuple[int, int]] | None
) -> None:
    raw = struct.pack("<5Q", 0x7001, 0x7002, 1, 77, 78)[:place] + struct.pack("<2Q", *words[:2])
    raw += struct.pack("<3Q", DEVICE, DEVICE, DEVICE)[:between] + struct.pack("<2Q", *words[2:])
    memory = Memory(FakeTarget({DEVICE: raw.ljust(PAGE, b"\0")}))
    if found is None:
        with pytest.raises(BadData, match="no CUDA graph"):
            cuda_graph(memory, DEVICE)
    else:
        assert cuda_graph(memory, DEVICE) == (DEVICE, *found)
