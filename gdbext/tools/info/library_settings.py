"""Settings of the allocators of accelerators, thread counts of libraries below PyTorch, and default random generators.

Allocators (PYTORCH_ALLOC_CONF, torch.cuda.memory._set_allocator_settings): c10/core/AllocatorConfig.h (since 2.9) and
c10/cuda/CUDAAllocatorConfig.h, by their members' names, so that what a release has besides is read as well.
Thread counts of OpenMP, MKL and OpenBLAS: their own variables. Generators: ATen/core/MT19937RNGEngine.h,
ATen/CPUGeneratorImpl.{h,cpp}, ATen/cuda/CUDAGeneratorImpl.{h,cpp}, 2.13.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import sha256

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Place, Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, LayoutError
from gdbext.torch.assumed_symbols import CPU
from gdbext.torch.state import setting_sources
from gdbext.torch.state.setting_sources import DEFAULT, SettingValue
from gdbext.torch.state.setting_structures import (
    AllocatorConfig,
    CpuGeneratorImpl,
    CudaAllocatorConfig,
    CudaGeneratorImpl,
    MersenneData,
)
from gdbext.torch.values.containers import string_reader, vector_span

_TEXTS = (AllocatorConfig.last_allocator_settings_.path, CudaAllocatorConfig.m_last_allocator_settings.path)
_LISTS = (AllocatorConfig.roundup_power2_divisions_.path, CudaAllocatorConfig.m_roundup_power2_divisions.path)
UNLIMITED = (1 << 64) - 1
"""std::numeric_limits<size_t>::max(): no limit is set."""


def allocator_settings(memory: Memory, layout: Layout, kind: str, address: int) -> dict[str, SettingValue]:
    """Member → value of the object of class ``kind`` at ``address``; None for no limit. Members that are no number,
    flag or text are left out. Raises LayoutError, BadData, MemoryFault."""
    strings = string_reader(memory, layout)
    settings: dict[str, SettingValue] = {}
    for field in layout.struct(kind).fields.values():
        name = field.name.removeprefix("m_").rstrip("_")
        at = address + field.offset
        type_name = field.type.removeprefix("std::atomic<").removesuffix(">")
        if field.name in _TEXTS:
            settings[name] = strings.read(at)
        elif field.name in _LISTS:
            first, count = vector_span(memory, at, 8, 64)
            settings[name] = tuple(memory.words(first, count)) if count else ()
        elif "." in field.name:
            continue
        elif type_name == "bool":
            settings[name] = memory.u8(at) != 0
        elif type_name == "double":
            settings[name] = float(struct.unpack("<d", memory.read(at, 8))[0])
        elif type_name == "long unsigned int" and field.size == 8:
            value = memory.u64(at)
            settings[name] = None if value == UNLIMITED else value
    return settings


class ThreadCounts:
    """All methods raise MemoryFault, and BadData if the library is not loaded or not a known one."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer

    def openmp(self, thread_pointer: int) -> int:
        """The result of omp_get_max_threads() in the thread whose control block is there; for GNU's OpenMP."""
        module = self._module(setting_sources.OPENMP)
        address = self._address(setting_sources.OPENMP_THREADS, module)
        load = self._memory.architecture.threads_or_global(self._memory.read(address, 64), address)
        if not load:
            raise BadData(f"{setting_sources.OPENMP_THREADS} of {module.name} is not a plain load in this build")
        offset = self._memory.u64(load.slot) + load.displacement
        task = self._memory.u64((thread_pointer + offset) % (1 << 64))
        return _checked_count(self._memory.u64(task + load.member if task else load.otherwise))

    def mkl(self) -> SettingValue:
        """The number set by mkl_set_num_threads() or MKL_NUM_THREADS; DEFAULT if none is: then all physical cores."""
        number = self._mkl(setting_sources.MKL_THREADS)
        return _checked_count(number) if number > 0 else DEFAULT

    def mkl_dynamic(self) -> bool:
        """MKL may use fewer threads (MKL_DYNAMIC, mkl_set_dynamic())."""
        return self._mkl(setting_sources.MKL_DYNAMIC) != 0

    def _mkl(self, symbol: str) -> int:
        ready = self._symbolizer.address_of(setting_sources.MKL_READY, CPU)
        address = self._symbolizer.address_of(symbol, CPU)
        if not ready or not address:
            raise BadData("there is no MKL in libtorch_cpu.so, or one of another version")
        if not self._memory.u8(ready):
            raise BadData("MKL was not used yet: its environment variables will decide")
        return self._memory.i32(address)

    def openblas(self) -> int:
        """The number of threads of the one OpenBLAS that is loaded, NumPy's in most programs."""
        module = self._module(setting_sources.OPENBLAS)
        if not self._memory.u32(self._address(setting_sources.OPENBLAS_READY, module)):
            raise BadData("OpenBLAS was not used yet: its environment variables will decide")
        return _checked_count(self._memory.u32(self._address(setting_sources.OPENBLAS_THREADS, module)))

    def _module(self, name: str) -> Module:
        modules = [module for module in self._symbolizer.modules.modules if name in module.name]
        if not modules:
            raise BadData(f"the process has not loaded a library {name}")
        if len(modules) > 1:
            raise BadData(f"the process has loaded {len(modules)} libraries {name}")
        return modules[0]

    def has(self, name: str) -> bool:
        """A library of that name is loaded."""
        return any(name in module.name for module in self._symbolizer.modules.modules)

    def _address(self, symbol: str, module: Module) -> int:
        address = self._symbolizer.address_of(symbol, module.name)
        if not address:
            raise BadData(f"{module.name} has no {symbol}")
        return address


def _checked_count(number: int) -> int:
    if not 0 < number < 1 << 16:
        raise BadData(f"{number} is not a number of threads")
    return number


N, M = 624, 397
"""Sizes MERSENNE_STATE_N and MERSENNE_STATE_M of the generator."""
_HIGH, _LOW, _MATRIX, _MASK = 0x80000000, 0x7FFFFFFF, 0x9908B0DF, 0xFFFFFFFF
_BLOCKS = 200
"""Blocks of numbers that are generated again to find out how many were drawn, at most: 125,000 numbers, 0.05 s."""
_LEGACY = f"<Qii Q {N}Q 3d i 4x"
"""CPUGeneratorImplStateLegacy: the seed, left, seeded, next, the state, three numbers of a normal distribution, whether
one of them is valid."""
_NEWER = "<f?3x"
"""The fields behind it in CPUGeneratorImplState: the float that a normal distribution has left, and whether it has
one."""


class CpuGenerator:
    """The default generator of the CPU. Raises LayoutError, BadData, MemoryFault."""

    def __init__(self, memory: Memory, layout: Layout, address: int, seed_offset: int | None) -> None:
        """``seed_offset``: where the generator's accessor loads the seed from, None if unknown."""
        self._whole = CpuGeneratorImpl(Space(memory, layout), address)
        self._engine = self._whole.engine_.data_
        if seed_offset is not None and address + seed_offset != self._engine.place(MersenneData.seed_):
            raise LayoutError("the layout of the CPU's generator is not that of this build")
        self.seed = self._engine.seed_
        self.left, self.next = self._engine.left_, self._engine.next_
        self.words = struct.unpack(f"<{N}I", self._engine.bytes_of(MersenneData.state_))
        if not 0 <= self.left <= N or self.next > N:
            raise BadData(f"the CPU's generator has {self.left} numbers left, and {self.next} is the next")

    def description(self) -> dict[str, SettingValue]:
        """The generator for a report; ``drawn``: see drawn()."""
        digest = sha256(self.state()).hexdigest()
        return {"device": "cpu", "seed": self.seed, "drawn": self.drawn(), "state_sha256": digest}

    def state(self) -> bytes:
        """The bytes that torch.get_rng_state() gives."""

        def second_of_pair(member: Place, code: str) -> tuple[float, bool]:
            """(the second number of a pair that a normal distribution made, whether there is one)."""
            space, size = self._whole.space, struct.calcsize(code)
            raw, field = space.memory.read(self._whole.place(member), 2 * size), member.field(space.layout)
            # The older type c10::optional, before it became the standard one's name, has the flag first.
            flag, value = (0, raw[size:]) if field.type.startswith("c10::optional") else (size, raw[:size])
            return (struct.unpack(code, value)[0], True) if raw[flag] else (0.0, False)

        double, has_double = second_of_pair(CpuGeneratorImpl.next_double_normal_sample_, "<d")
        single, has_single = second_of_pair(CpuGeneratorImpl.next_float_normal_sample_, "<f")
        seeded = self._engine.seeded_
        legacy = (self.seed, self.left, seeded, self.next, *self.words, 0.0, double, 0.0, has_double)
        return struct.pack(_LEGACY, *legacy) + struct.pack(_NEWER, single, has_single)

    def drawn(self) -> int | None:
        """How many numbers of 32 bits were drawn since it was seeded, found by generating them again; None for too
        many."""
        words = [self.seed & 0xFFFFFFFF]
        for index in range(1, N):
            last = words[-1]
            words.append((1812433253 * (last ^ last >> 30) + index) & 0xFFFFFFFF)
        if self.left == 1 and self.next == 0:
            return 0 if words == list(self.words) else None
        for block in range(_BLOCKS):
            for index in range(N):  # the next block, in place (Matsumoto and Nishimura's MT19937)
                following = words[(index + 1) % N]
                mixed = (words[index] & 0x80000000) | (following & 0x7FFFFFFF)
                words[index] = words[(index + M) % N] ^ mixed >> 1 ^ (0x9908B0DF if following & 1 else 0)
            if words == list(self.words):
                return block * N + self.next
        return None


def cuda_generators(memory: Memory, layout: Layout, vector: int) -> Iterator[dict[str, SettingValue]]:
    """The generators of the devices that were used; ``vector`` has at most 64. Raises LayoutError, BadData,
    MemoryFault."""
    first, count = vector_span(memory, vector, 8, 64)
    for device in range(count):
        generator = memory.u64(first + 8 * device)
        if generator:
            state = CudaGeneratorImpl(Space(memory, layout), generator).state_
            yield {"device": f"cuda:{device}", "seed": state.seed_, "offset": state.philox_offset_per_thread_}
