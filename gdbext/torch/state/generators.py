"""Default generators of random numbers: their seeds, how far they are, and the state that torch.set_rng_state takes.

ATen/core/MT19937RNGEngine.h, ATen/CPUGeneratorImpl.{h,cpp}, ATen/cuda/CUDAGeneratorImpl.{h,cpp}, 2.13.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import sha256

from gdbext.errors import BadData, LayoutError
from gdbext.layouts.layout import Layout
from gdbext.model.sections.settings_section import SettingValue
from gdbext.process.memory import Memory
from gdbext.process.struct_view import StructView
from gdbext.torch.values.containers import vector_span

_CPU, _ENGINE, _WORDS = "at::CPUGeneratorImpl", "at::mt19937_data_pod", "at::mt19937_engine"
_CUDA, _CUDA_STATE = "at::CUDAGeneratorImpl", "at::CUDAGeneratorState"
N, M = 624, 397
"""MERSENNE_STATE_N, MERSENNE_STATE_M."""
_HIGH, _LOW, _MATRIX, _MASK = 0x80000000, 0x7FFFFFFF, 0x9908B0DF, 0xFFFFFFFF
_BLOCKS = 200
"""So many blocks of numbers are made again to find out how many were drawn: 125,000 numbers, 0.05 s."""
_LEGACY = f"<Qii Q {N}Q 3d i 4x"
"""CPUGeneratorImplStateLegacy: the seed, left, seeded, next, the state, three numbers of a normal distribution, whether
one of them is valid."""
_NEWER = "<f?3x"
"""Behind it in CPUGeneratorImplState: the float that a normal distribution has left, and whether there is one."""
DEVICES = 64
"""More are not believed."""


class CpuGenerator:
    """The default generator of the CPU. Raises LayoutError, BadData, MemoryFault."""

    def __init__(self, memory: Memory, layout: Layout, address: int, seed_offset: int | None) -> None:
        """``seed_offset``: where the generator's accessor loads the seed from, None where nobody knows."""
        self._whole = StructView(memory, address, layout.struct(_CPU))
        engine = layout.struct(_ENGINE)
        inner = self._whole.address("engine_") + layout.struct(_WORDS).offset("data_")
        self._engine = StructView(memory, inner, engine)
        if seed_offset is not None and address + seed_offset != self._engine.address("seed_"):
            raise LayoutError("the layout of the CPU's generator is not that of this build")
        self.seed = self._engine.u64("seed_")
        self.left, self.next = self._engine.i32("left_"), self._engine.u32("next_")
        self.words = struct.unpack(f"<{N}I", self._engine.raw("state_"))
        if not 0 <= self.left <= N or self.next > N:
            raise BadData(f"the CPU's generator has {self.left} numbers left, and {self.next} is the next")

    def described(self) -> dict[str, SettingValue]:
        """For a report; ``drawn`` is how many numbers of 32 bits were drawn since it was seeded, None for too many."""
        return {"device": "cpu", "seed": self.seed, "drawn": self.drawn(),
                "state_sha256": sha256(self.state()).hexdigest()}  # fmt: skip

    def state(self) -> bytes:
        """What torch.get_rng_state() gives."""
        double, float_ = (self._left_over(name) for name in ("double", "float"))
        normal = struct.unpack("<d", double)[0] if double is not None else 0.0
        legacy = struct.pack(_LEGACY, self.seed, self.left, self._engine.u8("seeded_"), self.next, *self.words,
                             0.0, normal, 0.0, double is not None)  # fmt: skip
        small = struct.unpack("<f", float_)[0] if float_ is not None else 0.0
        return legacy + struct.pack(_NEWER, small, float_ is not None)

    def _left_over(self, kind: str) -> bytes | None:
        """The second number of a pair that a normal distribution made."""
        size = 8 if kind == "double" else 4
        field = self._whole.struct.field(f"next_{kind}_normal_sample_")
        raw = self._whole.memory.read(self._whole.base + field.offset, 2 * size)
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
        state = memory.u64(generator + layout.struct(_CUDA).offset("state_"))
        view = StructView(memory, state, layout.struct(_CUDA_STATE))
        offset = view.u64("philox_offset_per_thread_")
        yield {"device": f"cuda:{device}", "seed": view.u64("seed_"), "offset": offset}
