"""Default generators of random numbers: their seeds, how far they are, and the state that torch.set_rng_state takes.

ATen/core/MT19937RNGEngine.h, ATen/CPUGeneratorImpl.{h,cpp}, ATen/cuda/CUDAGeneratorImpl.{h,cpp}, 2.13.0.

Settings of the allocators of accelerators (PYTORCH_ALLOC_CONF, torch.cuda.memory._set_allocator_settings).

c10/core/AllocatorConfig.h (since 2.9) and c10/cuda/CUDAAllocatorConfig.h, by their members' names: what a release has
besides is read as well.

How many threads the libraries below PyTorch use: OpenMP, MKL, OpenBLAS, as their own variables say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import sha256

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Place, Space
from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, LayoutError
from gdbext.torch.assumed_symbols import CPU
from gdbext.torch.state import setting_sources as sources
from gdbext.torch.state.setting_sources import DEFAULT, SettingValue
from gdbext.torch.state.setting_structures import (
    AllocatorConfig,
    CpuGeneratorImpl,
    CudaAllocatorConfig,
    CudaGeneratorImpl,
    MersenneData,
)
from gdbext.torch.values.containers import StringReader, string_reader, vector_span

_TEXTS = (AllocatorConfig.last_allocator_settings_.path, CudaAllocatorConfig.m_last_allocator_settings.path)
_LISTS = (AllocatorConfig.roundup_power2_divisions_.path, CudaAllocatorConfig.m_roundup_power2_divisions.path)
UNLIMITED = (1 << 64) - 1
"""std::numeric_limits<size_t>::max(): nobody has set a limit."""
_DIVISION_LIMIT = 64


def allocator_settings(memory: Memory, layout: Layout, kind: str, address: int) -> dict[str, SettingValue]:
    """Member to value, of the object of class ``kind`` at ``address``; None for no limit. Members that are no number,
    flag or text are left out. Raises LayoutError, BadData, MemoryFault."""
    shape = layout.struct(kind)
    strings = string_reader(memory, layout)
    return dict(_members(memory, shape, strings, address))


def _members(
    memory: Memory, shape: StructLayout, strings: StringReader, address: int
) -> Iterator[tuple[str, SettingValue]]:
    for field in shape.fields.values():
        name = field.name.removeprefix("m_").rstrip("_")
        at = address + field.offset
        if field.name in _TEXTS:
            yield name, strings.read(at)
        elif field.name in _LISTS:
            first, count = vector_span(memory, at, 8, _DIVISION_LIMIT)
            yield name, tuple(memory.words(first, count)) if count else ()
        elif "." not in field.name:
            found = _number(memory, field, at)
            if found:
                yield name, found[0]


def _number(memory: Memory, field: FieldLayout, address: int) -> tuple[SettingValue] | None:
    """The value of a member of a type that is known, in a tuple of its own; None for another type."""
    kind = field.type.removeprefix("std::atomic<").removesuffix(">")
    if kind == "bool":
        return (memory.u8(address) != 0,)
    if kind == "double":
        return (float(struct.unpack("<d", memory.read(address, 8))[0]),)
    if kind == "long unsigned int" and field.size == 8:
        value = memory.u64(address)
        return (None if value == UNLIMITED else value,)
    return None


_GETTER_SIZE = 64
_MOST = 1 << 16
"""More threads are not believed."""


class ThreadCounts:
    """Reads them. All raise BadData where the library is not there or another one than is known, MemoryFault."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer

    def openmp(self, thread_pointer: int) -> int:
        """The number that omp_get_max_threads() returns in the thread with its control block there; OpenMP is GNU's."""
        module = self._module(sources.OPENMP)
        address = self._address(sources.OPENMP_THREADS, module)
        code = self._memory.read(address, _GETTER_SIZE)
        found = self._memory.architecture.threads_or_global(code, address)
        if not found:
            raise BadData(f"{sources.OPENMP_THREADS} of {module.name} is not a plain load in this build")
        offset = self._memory.u64(found.slot) + found.displacement
        task = self._memory.u64((thread_pointer + offset) % (1 << 64))
        return self._believed(self._memory.u64(task + found.member if task else found.otherwise))

    def mkl(self) -> SettingValue:
        """The number that mkl_set_num_threads() or MKL_NUM_THREADS gave, DEFAULT where nobody did: then all physical
        cores."""
        number = self._mkl(sources.MKL_THREADS)
        return self._believed(number) if number > 0 else DEFAULT

    def mkl_dynamic(self) -> bool:
        """MKL may use fewer threads (MKL_DYNAMIC, mkl_set_dynamic())."""
        return self._mkl(sources.MKL_DYNAMIC) != 0

    def _mkl(self, symbol: str) -> int:
        ready = self._symbolizer.address_of(sources.MKL_READY, CPU)
        address = self._symbolizer.address_of(symbol, CPU)
        if not ready or not address:
            raise BadData("there is no MKL in libtorch_cpu.so, or one of another version")
        if not self._memory.u8(ready):
            raise BadData("MKL was not used yet: its environment variables will decide")
        return self._memory.i32(address)

    def openblas(self) -> int:
        """The number of threads of the OpenBLAS that is loaded, which is NumPy's in most programs; one of two that are
        is not named."""
        module = self._module(sources.OPENBLAS)
        if not self._memory.u32(self._address(sources.OPENBLAS_READY, module)):
            raise BadData("OpenBLAS was not used yet: its environment variables will decide")
        return self._believed(self._memory.u32(self._address(sources.OPENBLAS_THREADS, module)))

    def _module(self, name: str) -> Module:
        found = [module for module in self._symbolizer.modules.modules if name in module.name]
        if not found:
            raise BadData(f"the process has not loaded a library {name}")
        if len(found) > 1:
            raise BadData(f"the process has loaded {len(found)} libraries {name}")
        return found[0]

    def has(self, name: str) -> bool:
        """Some library of that name is loaded."""
        return any(name in module.name for module in self._symbolizer.modules.modules)

    def _address(self, symbol: str, module: Module) -> int:
        address = self._symbolizer.address_of(symbol, module.name)
        if not address:
            raise BadData(f"{module.name} has no {symbol}")
        return address

    @staticmethod
    def _believed(number: int) -> int:
        if not 0 < number < _MOST:
            raise BadData(f"{number} is not a number of threads")
        return number


N, M = 624, 397
"""Sizes MERSENNE_STATE_N and MERSENNE_STATE_M of the generator."""
_HIGH, _LOW, _MATRIX, _MASK = 0x80000000, 0x7FFFFFFF, 0x9908B0DF, 0xFFFFFFFF
_BLOCKS = 200
"""Most blocks of numbers that are made again to find out how many were drawn: 125,000 numbers, 0.05 s."""
_LEGACY = f"<Qii Q {N}Q 3d i 4x"
"""CPUGeneratorImplStateLegacy: the seed, left, seeded, next, the state, three numbers of a normal distribution, whether
one of them is valid."""
_NEWER = "<f?3x"
"""The fields behind it in CPUGeneratorImplState: the float that a normal distribution has left, and whether there is
one."""
DEVICES = 64
"""Most devices that are believed."""


class CpuGenerator:
    """The default generator of the CPU. Raises LayoutError, BadData, MemoryFault."""

    def __init__(self, memory: Memory, layout: Layout, address: int, seed_offset: int | None) -> None:
        """``seed_offset``: where the generator's accessor loads the seed from, None where nobody knows."""
        self._whole = CpuGeneratorImpl(Space(memory, layout), address)
        self._engine = self._whole.engine_.data_
        if seed_offset is not None and address + seed_offset != self._engine.place(MersenneData.seed_):
            raise LayoutError("the layout of the CPU's generator is not that of this build")
        self.seed = self._engine.seed_
        self.left, self.next = self._engine.left_, self._engine.next_
        self.words = struct.unpack(f"<{N}I", self._engine.bytes_of(MersenneData.state_))
        if not 0 <= self.left <= N or self.next > N:
            raise BadData(f"the CPU's generator has {self.left} numbers left, and {self.next} is the next")

    def described(self) -> dict[str, SettingValue]:
        """The generator for a report; ``drawn`` is how many numbers of 32 bits were drawn since it was seeded, None for
        too many."""
        return {
            "device": "cpu",
            "seed": self.seed,
            "drawn": self.drawn(),
            "state_sha256": sha256(self.state()).hexdigest(),
        }

    def state(self) -> bytes:
        """The bytes that torch.get_rng_state() gives."""
        double = self._left_over(CpuGeneratorImpl.next_double_normal_sample_, 8)
        float_ = self._left_over(CpuGeneratorImpl.next_float_normal_sample_, 4)
        normal = struct.unpack("<d", double)[0] if double is not None else 0.0
        legacy = struct.pack(
            _LEGACY,
            self.seed,
            self.left,
            self._engine.seeded_,
            self.next,
            *self.words,
            0.0,
            normal,
            0.0,
            double is not None,
        )
        small = struct.unpack("<f", float_)[0] if float_ is not None else 0.0
        return legacy + struct.pack(_NEWER, small, float_ is not None)

    def _left_over(self, member: Place, size: int) -> bytes | None:
        """The second number of a pair that a normal distribution made, of ``size`` bytes."""
        space = self._whole.space
        raw, field = space.memory.read(self._whole.place(member), 2 * size), member.field(space.layout)
        if field.type.startswith("c10::optional"):  # of its own, before it was the standard one's name: flag, value
            return raw[size:] if raw[0] else None
        return raw[:size] if raw[size] else None

    def drawn(self) -> int | None:
        """Numbers that were drawn, found by making them again from the seed."""
        words = _seeded(self.seed)
        if self.left == 1 and self.next == 0:
            return 0 if words == list(self.words) else None
        for block in range(_BLOCKS):
            _refill(words)
            if words == list(self.words):
                return block * N + self.next
        return None


def _seeded(seed: int) -> list[int]:
    words = [seed & _MASK]
    for index in range(1, N):
        last = words[-1]
        words.append((1812433253 * (last ^ last >> 30) + index) & _MASK)
    return words


def _refill(words: list[int]) -> None:
    """The next block of numbers, in place (Matsumoto and Nishimura's MT19937)."""
    for index in range(N):
        mixed = (words[index] & _HIGH) | (words[(index + 1) % N] & _LOW)
        words[index] = words[(index + M) % N] ^ mixed >> 1 ^ (_MATRIX if words[(index + 1) % N] & 1 else 0)


def cuda_generators(memory: Memory, layout: Layout, vector: int) -> Iterator[dict[str, SettingValue]]:
    """Those of the devices that were used, of the vector at ``vector``. Raises LayoutError, BadData, MemoryFault."""
    first, count = vector_span(memory, vector, 8, DEVICES)
    for device in range(count):
        generator = memory.u64(first + 8 * device)
        if not generator:
            continue
        state = CudaGeneratorImpl(Space(memory, layout), generator).state_
        yield {"device": f"cuda:{device}", "seed": state.seed_, "offset": state.philox_offset_per_thread_}
