"""dispatch-info: symbols that are assumed of torch, and settings of libraries in made-up memory."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import BadData, LayoutError
from gdbext.tools.info import SymbolStatus, in_release
from gdbext.tools.info.settings_report import CpuGenerator, RecordedFunctions, ThreadCounts, cuda_generators
from gdbext.torch import assumed_symbols
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.state.cuda_state import CudaAllocator
from gdbext.torch.torch_symbol import TorchSymbol
from support.fakes.fake_target import FakeTarget


def test_what_came_later_is_not_missed() -> None:
    row, missing, found = assumed_symbols.FLIGHT_RECORDERS_OF_HOOKS, SymbolStatus.MISSING, SymbolStatus.FOUND
    for version, status in {
        "2.13.0+cpu": SymbolStatus.OTHER_RELEASE,
        "2.15.0": missing,
        "2.15.1a0+git1": missing,
    }.items():
        assert in_release(row, missing, version) is status
        assert in_release(row, found, version) is found


START, ENGINE, PAGE = 0x10000, 80, 0x1000
CODE, THREAD, MANAGER, ENTRIES = 0x12000, 0x13000, 0x10000, 0x11000
NODE, PARENT, PROFILER, OTHER, BLOCKS = 0x14000, 0x15000, 0x16000, 0x17000, 0x18000
FLAGS = ("report_input_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
KINDS = ("current", "peak", "allocated", "freed")
ARRAY, STAT = "std::array<c10::CachingAllocator::Stat, 3>", "c10::CachingAllocator::Stat"
POD = "at::mt19937_data_pod"
DEQUE = (("start._M_cur", 16), ("start._M_last", 32), ("start._M_node", 40), ("finish._M_cur", 48))
NORMALS = {"next_float_normal_sample_": (2600, 8), "next_double_normal_sample_": (2608, 16)}
STRUCTS: dict[str, dict[str, tuple[Any, ...]]] = {
    "at::CPUGeneratorImpl": {"engine_": (80, 2520), **NORMALS},
    "at::mt19937_engine": {"data_": (0, 2520)},
    POD: {"seed_": (0, 8), "left_": (8, 4), "seeded_": (12, 1), "next_": (16, 4), "state_": (20, 2496)},
    "at::CUDAGeneratorImpl": {"state_": (80, 8)},
    "at::CUDAGeneratorState": {"seed_": (16, 8), "philox_offset_per_thread_": (24, 8)},
    "at::RecordFunctionCallbacksEntry": {"callback_": (0, 40), "handle_": (40, 8), "enabled_": (48, 1)},
    "at::RecordFunctionCallback": {"start_": (0, 8), "end_": (8, 8), "sampling_prob_": (16, 8), "scopes_": (24, 3)},
    "at::RecordFunctionTLS": {"sorted_tls_callbacks_": (0, 24)},
    "c10::ThreadLocalDebugInfo": {"info_": (0, 16), "parent_info_": (24, 16)},
    "torch::profiler::impl::ProfilerStateBase": {"config_": (48, 64)},
    "torch::profiler::impl::ProfilerConfig": {"state": (0, 4), **{name: (8 + at, 1) for at, name in enumerate(FLAGS)}},
    "at::impl::SavedTensorDefaultHooksTLS": {"stack": (0, 80), "disabled_error_message": (80, 40)},
    "c10::SafePyObject": {"data_": (0, 8)},
    "std::string": {},
    "std::mutex": {},
    "std::deque": {f"_M_impl._M_{name}": (at, 8) for name, at in DEQUE},
    "c10::CachingAllocator::Stat": {each: (8 * index, 8) for index, each in enumerate(KINDS)},
    "c10::CachingDeviceAllocator::DeviceStats": {
        "allocated_bytes": (0, 96, ARRAY),
        "by_pools": (96, 32, "ska::flat_hash_map<int>"),
        "oversize_segments": (128, 32, STAT),
        "num_ooms": (160, 8, "long int"),
    },
}
SIZES = {"at::CPUGeneratorImpl": 2624, "at::RecordFunctionCallbacksEntry": 56, "c10::SafePyObject": 16}
SIZES |= {"std::string": 32, "std::mutex": 40, "c10::CachingAllocator::Stat": 32}
ENUMS = {
    "at::RecordScope": {"FUNCTION": 0, "BACKWARD_FUNCTION": 1, "USER_SCOPE": 2, "NUM_SCOPES": 3},
    "torch::profiler::impl::ProfilerState": {"Disabled": 0, "CPU": 1, "KINETO": 6},
}


class Layout:
    def struct(self, name: str) -> StructLayout:
        fields = {each: FieldLayout(each, *at) for each, at in STRUCTS[name].items()}
        return StructLayout(name, SIZES.get(name, 0), fields)

    def enum(self, name: str) -> dict[str, int]:
        return ENUMS[name]


def memory(regions: dict[int, bytes]) -> Memory:
    return Memory(FakeTarget({start: content.ljust(PAGE, b"\0") for start, content in regions.items()}))


def words(seed: int, drawn: int) -> tuple[int, ...]:
    """The state of CPython's generator, which is the same one, seeded as PyTorch's is."""
    state = [seed & 0xFFFFFFFF]
    for index in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + index) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    for _ in range(drawn):
        generator.getrandbits(32)
    return tuple(generator.getstate()[1][:624])


def generator(seed: int, drawn: int, left: int = 0, at: int = ENGINE, flag_first: bool = False) -> CpuGenerator:
    position = (drawn - 1) % 624 + 1 if drawn else 0
    whole = bytearray(2624)
    struct.pack_into("<QiB3xI", whole, ENGINE, seed, left or (624 - position + 1 if drawn else 1), 1, position)
    struct.pack_into("<624I", whole, ENGINE + 20, *words(seed, drawn))
    struct.pack_into(*(("<B7xd", whole, 2608, 1, 0.25) if flag_first else ("<dB", whole, 2608, 0.25, 1)))
    return CpuGenerator(memory({START: bytes(whole)}), Layout(), START, at)  # type: ignore[arg-type]


def test_how_many_numbers_were_drawn_and_the_state_as_pytorch_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for drawn in (0, 1, 624, 625, 2000):
        assert generator(2**40 + 5489, drawn).drawn() == drawn
    with pytest.raises(BadData):
        generator(5489, 1, left=700)
    with pytest.raises(LayoutError):
        generator(5489, 1, at=ENGINE + 8)
    state = generator(5489, 1).state()
    assert len(state) == 5056
    assert struct.unpack_from("<QiiQ", state) == (5489, 624, 1, 1)
    assert struct.unpack_from("<624Q", state, 24) == words(5489, 1)
    assert struct.unpack_from("<3di", state, 24 + 8 * 624) == (0.0, 0.25, 0.0, 1)
    assert struct.unpack_from("<f?", state, 5048) == (0.0, False)
    optional = (2608, 16, "c10::optional<double>")  # in 2.0 and some releases after it the flag comes first
    monkeypatch.setitem(STRUCTS["at::CPUGeneratorImpl"], "next_double_normal_sample_", optional)
    assert generator(5489, 1).state() != state, "no flag is set there"
    assert generator(5489, 1, flag_first=True).state() == state


def test_generators_of_cuda_devices() -> None:
    vector, first, state = 0x20000, 0x21000, 0x22000
    elements = struct.pack("<QQQ8xQQ", vector + 32, vector + 48, vector + 48, 0, first)
    at_state = bytes(16) + struct.pack("<QQ", 77, 16)
    made = memory({vector: elements, first: bytes(80) + struct.pack("<Q", state), state: at_state})
    found = list(cuda_generators(made, Layout(), vector))  # type: ignore[arg-type]
    assert found == [{"device": "cuda:1", "seed": 77, "offset": 16}]


KINETO, MOBILE = "_ZTVN5torch8autograd8profiler12_GLOBAL__N_122KinetoThreadLocalStateE", "_ZTVN5torch15MobileDebugInfoE"


class Process(Layout):
    def __init__(self, regions: dict[int, bytes]) -> None:
        self.memory = memory(regions)
        self.variables: dict[str, int] = {}
        self.reader = RecordedFunctions(self.memory, self, self)  # type: ignore[arg-type]

    def address_of(self, name: str, library: str) -> int | None:  # noqa: ARG002 - as Symbolizer
        return MANAGER if name == sources.CALLBACKS else None

    def function(self, address: int) -> Any:
        return SimpleNamespace(demangled=("on_enter()",)) if address == CODE else None

    def names_at(self, address: int) -> tuple[str, ...]:
        return {CODE: (KINETO,), CODE + 64: (MOBILE,)}.get(address, ())

    def address(self, variable: TorchSymbol) -> int | None:
        return self.variables.get(variable.names[0])


def entry(start: int, enabled: bool, probability: float = 1.0) -> bytes:
    return struct.pack("<QQd3?13xQ?7x", start, 0, probability, True, False, True, 1, enabled)


def test_callbacks_of_all_threads() -> None:
    entries = entry(CODE, True) + entry(0x999, False, 0.25)
    vector = struct.pack("<QQQQ", 3, ENTRIES, ENTRIES + 112, ENTRIES + 112)
    found = Process({MANAGER: vector, ENTRIES: entries}).reader.global_callbacks()
    both = {"end": None, "scopes": ("FUNCTION", "USER_SCOPE")}
    first = {"start": "on_enter()", "enabled": True, "sampling": 1.0}
    assert found == ({**first, **both}, {"start": "0x999", "enabled": False, "sampling": 0.25, **both})
    process = Process({THREAD: bytes(8) + b"\1"})
    guard, callbacks = sources.THREAD_CALLBACKS_GUARD.names[0], sources.THREAD_CALLBACKS.names[0]
    for variables in ({}, {guard: THREAD, callbacks: 0x666}):  # its guard is not set
        process.variables = variables
        assert process.reader.thread_callbacks(process) == ()  # type: ignore[arg-type]


def test_a_profiler_in_a_chain_of_debug_info() -> None:
    config = struct.pack("<I4x5?", 6, True, False, True, False, False)
    regions = {THREAD: struct.pack("<QQ", 1, NODE), NODE: struct.pack("<QQQQ", OTHER, 0, 0, PARENT)}
    regions |= {PARENT: struct.pack("<QQQQ", PROFILER, 0, 0, 0), OTHER: struct.pack("<Q", CODE + 80)}
    process = Process({**regions, PROFILER: struct.pack("<Q", CODE + 16) + bytes(40) + config})
    process.variables = {sources.DEBUG_INFO_GUARD.names[0]: THREAD, sources.DEBUG_INFO.names[0]: THREAD + 8}
    settings = dict(zip(FLAGS, (True, False, True, False, False)))
    assert process.reader.profiler(process) == {"state": "KINETO", **settings}  # type: ignore[arg-type]


def test_saved_tensor_hooks_of_several_blocks() -> None:
    """Sixteen pairs of 32 bytes fill a block of 512."""
    blocks = [BLOCKS + 0x400, BLOCKS + 0x800]
    content = bytearray(PAGE)
    struct.pack_into("<QQ", content, 0, *blocks)
    for number in range(18):
        at = blocks[number // 16] - BLOCKS + 32 * (number % 16)
        struct.pack_into("<QQQQ", content, at, 0x100 + number, 1, 0x200 + number, 1)
    first, last = blocks
    start, finish = (first, first, first + 512, BLOCKS), (last + 64, last, last + 512, BLOCKS + 8)
    deque = struct.pack("<10Q", BLOCKS, 8, *start, *finish)
    process = Process({THREAD: deque + bytes(32) + b"\1", BLOCKS: bytes(content)})
    assert process.reader.saved_tensor_hooks(process) == ()  # type: ignore[arg-type]
    process.variables = {sources.SAVED_TENSOR_HOOKS.names[0]: THREAD}
    expected = tuple((0x100 + number, 0x200 + number) for number in range(18))
    assert process.reader.saved_tensor_hooks(process) == expected  # type: ignore[arg-type]
    assert process.reader.saved_tensor_hooks_disabled(process) is True  # type: ignore[arg-type]


GETTER = bytes.fromhex("f30f1efa488b052dab220064488b50504885d2488d8290000000488d15afab2200480f44c2488b00c3")
"""omp_get_max_threads of libgomp, whose slot is at +0x22ab38 and whose global object at +0x22abd0."""


def counts(names: dict[str, int], regions: dict[int, bytes], *libraries: str) -> ThreadCounts:
    modules = SimpleNamespace(modules=[SimpleNamespace(name=name) for name in libraries])
    symbols = SimpleNamespace(modules=modules, address_of=lambda name, _: names.get(name, 0))
    return ThreadCounts(memory(regions), symbols)  # type: ignore[arg-type]


def openmp(task: int) -> ThreadCounts:
    base = 0x400000
    data = bytearray(PAGE)
    struct.pack_into("<q", data, 0xB38, -0x80)
    struct.pack_into("<Q", data, 0xBD0, 4)
    own = bytes(0x30) + struct.pack("<Q", task)  # -0x80 + 0x50 from the thread pointer
    regions = {base: GETTER, base + 0x22A000: bytes(data)}
    regions |= {THREAD: bytes(0x50) + own, NODE: bytes(0x90) + struct.pack("<Q", 7)}
    return counts({sources.OPENMP_THREADS: base}, regions, "libgomp-a34b3233.so.1")


def test_threads_of_openmp_mkl_and_openblas() -> None:
    assert openmp(NODE).openmp(THREAD + 0xB0) == 7, "what this thread has set"
    assert openmp(0).openmp(THREAD + 0xB0) == 4, "what holds for all others"
    with pytest.raises(BadData, match="expected one libgomp library, but 0 are loaded"):
        counts({}, {}, "libiomp5.so").openmp(THREAD)
    names = {sources.MKL_READY: CODE, sources.MKL_THREADS: CODE + 8, sources.MKL_DYNAMIC: CODE + 12}
    names |= {sources.OPENBLAS_READY: CODE + 16, sources.OPENBLAS_THREADS: CODE + 20}
    found = counts(names, {CODE: struct.pack("<QiiII", 1, 3, 0, 2, 8)}, "libscipy_openblas64_.so")
    assert (found.mkl(), found.mkl_dynamic(), found.openblas()) == (3, False, 8)
    nobody = counts(names, {CODE: struct.pack("<QiiII", 1, -1, 1, 0, 0)}, "libscipy_openblas64_.so")
    assert (nobody.mkl(), nobody.mkl_dynamic()) == ("default", True)
    with pytest.raises(BadData, match="OpenBLAS was not used yet"):
        nobody.openblas()
    with pytest.raises(BadData, match="MKL was not used yet"):
        counts(names, {CODE: bytes(24)}).mkl()
    with pytest.raises(BadData, match=r"libtorch_cpu\.so has no MKL"):
        counts({}, {}).mkl()


ALLOCATOR, VARIABLE, GETTER_AT, DEVICE, VTABLE, ELEMENTS = 0x10000, 0x20000, 0x30000, 0x40000, 0x50000, 0x60000
GETTER_CODE = bytes.fromhex("488b4e20488b4628c3")
"""mov 0x20(%rsi), %rcx; mov 0x28(%rsi), %rax; ret"""
NATIVE = "_ZTVN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE"
ASYNCHRONOUS = "_ZTVN3c104cuda20CUDACachingAllocator15CudaMallocAsync24CudaMallocAsyncAllocatorE"


class Device(Layout):
    """A process with one device, which is also its symbols and its layout."""

    def __init__(self) -> None:
        self.vtable = NATIVE
        self.elements = [DEVICE]
        self.pools = [(30, 50, 60, 30), (10, 30, 20, 10), (20, 40, 40, 20)]
        self.names = {sources.CUDA_ALLOCATOR_IN_USE.names[0]: VARIABLE, sources.CUDA_STATISTICS.names[0]: GETTER_AT}

    def address_of(self, name: str, library: str | None) -> int | None:  # noqa: ARG002 - as Symbolizer
        return self.names.get(name)

    def names_at(self, address: int) -> tuple[str, ...]:
        return (self.vtable,) if address == VTABLE else ()

    def devices(self) -> list[tuple[int, dict[str, int]]]:
        size = 8 * len(self.elements)
        statistics = b"".join(struct.pack("<4q", *pool) for pool in self.pools)
        allocator = struct.pack("<Q24x3Q", VTABLE + 16, ELEMENTS, ELEMENTS + size, ELEMENTS + size)
        regions = {VARIABLE: struct.pack("<Q", ALLOCATOR), ALLOCATOR: allocator}
        regions[ELEMENTS] = b"".join(struct.pack("<Q", each) for each in self.elements) + bytes(8)
        regions[GETTER_AT] = GETTER_CODE.ljust(256, b"\xcc")
        regions[DEVICE] = bytes(40) + statistics + bytes(32) + struct.pack("<5q", 1, 2, 3, 2, 4)
        found = CudaAllocator(memory(regions), self, self).devices()  # type: ignore[arg-type]
        return [(each.device, dict(each.statistics)) for each in found]


def test_statistics_by_the_names_of_memory_stats() -> None:
    numbers = {"allocated_bytes.all": (30, 50, 60, 30), "allocated_bytes.small_pool": (10, 30, 20, 10)}
    numbers |= {"allocated_bytes.large_pool": (20, 40, 40, 20), "oversize_segments": (1, 2, 3, 2)}
    expected = {f"{name}.{kind}": number for name, row in numbers.items() for kind, number in zip(KINDS, row)}
    process = Device()
    assert process.devices() == [(0, {**expected, "num_ooms": 4})]
    process.elements = [0, DEVICE]
    assert [device for device, _ in process.devices()] == [1], "the first was not used"
    process.elements = []
    assert process.devices() == []


def test_numbers_that_do_not_agree_other_allocators_and_none_yet() -> None:
    process = Device()
    process.pools[1] = (11, 30, 20, 10)
    with pytest.raises(BadData, match=r"allocated_bytes.current is \[30, 11, 20\]"):
        process.devices()
    unread = "CUDA's allocator is CudaMallocAsyncAllocator, which is not supported"
    for process.vtable, why in ((ASYNCHRONOUS, unread), ("_Z3foo", "is of an unknown class")):
        with pytest.raises(BadData, match=why):
            process.devices()
    del process.names[sources.CUDA_ALLOCATOR_IN_USE.names[0]]
    with pytest.raises(BadData, match="does not exist yet"):
        process.devices()
