"""The CPU's generator: its seed, how many numbers were drawn, its state as PyTorch writes it."""

from __future__ import annotations

import random
import struct

import pytest

from gdbext.engine.process.memory import FieldLayout, Memory, StructLayout
from gdbext.errors import BadData, LayoutError
from gdbext.tools.info.library_settings import CpuGenerator, cuda_generators
from support.fakes.fake_target import FakeTarget

START, ENGINE, PAGE = 0x10000, 80, 0x1000
SHAPES: dict[str, tuple[int, tuple[tuple[str, int, int], ...]]] = {
    "at::CPUGeneratorImpl": (
        2624,
        (("engine_", ENGINE, 2520), ("next_float_normal_sample_", 2600, 8), ("next_double_normal_sample_", 2608, 16)),
    ),
    "at::mt19937_engine": (2520, (("data_", 0, 2520),)),
    "at::mt19937_data_pod": (
        2520,
        (("seed_", 0, 8), ("left_", 8, 4), ("seeded_", 12, 1), ("next_", 16, 4), ("state_", 20, 2496)),
    ),
    "at::CUDAGeneratorImpl": (96, (("state_", 80, 8),)),
    "at::CUDAGeneratorState": (64, (("seed_", 16, 8), ("philox_offset_per_thread_", 24, 8))),
}
LAYOUT = {
    name: StructLayout(name, size, {field[0]: FieldLayout(*field) for field in fields})
    for name, (size, fields) in SHAPES.items()
}


class Layout:
    def struct(self, name: str) -> StructLayout:
        return LAYOUT[name]


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


def generator(seed: int, drawn: int, left: int | None = None, seed_offset: int | None = ENGINE) -> CpuGenerator:
    position = (drawn - 1) % 624 + 1 if drawn else 0
    whole = bytearray(2624)
    remaining = left if left is not None else 624 - position + 1 if drawn else 1
    struct.pack_into("<QiB3xI", whole, ENGINE, seed, remaining, 1, position)
    struct.pack_into("<624I", whole, ENGINE + 20, *words(seed, drawn))
    struct.pack_into("<dB", whole, 2608, 0.25, 1)
    return CpuGenerator(memory({START: bytes(whole)}), Layout(), START, seed_offset)  # type: ignore[arg-type]


@pytest.mark.parametrize("drawn", [0, 1, 624, 625, 2000])
def test_how_many_numbers_were_drawn(drawn: int) -> None:
    assert generator(2**40 + 5489, drawn).drawn() == drawn


def test_the_state_as_pytorch_writes_it() -> None:
    state = generator(5489, 1).state()
    assert len(state) == 5056
    assert struct.unpack_from("<QiiQ", state) == (5489, 624, 1, 1)
    assert struct.unpack_from("<624Q", state, 24) == words(5489, 1)
    assert struct.unpack_from("<3di", state, 24 + 8 * 624) == (0.0, 0.25, 0.0, 1)
    assert struct.unpack_from("<f?", state, 5048) == (0.0, False)


def test_what_is_not_believed() -> None:
    with pytest.raises(BadData):
        generator(5489, 1, left=700)
    with pytest.raises(LayoutError):
        generator(5489, 1, seed_offset=ENGINE + 8)


def test_generators_of_cuda_devices() -> None:
    vector, first, state = 0x20000, 0x21000, 0x22000
    elements = struct.pack("<QQQ8xQQ", vector + 32, vector + 48, vector + 48, 0, first)
    at_state = bytes(16) + struct.pack("<QQ", 77, 16)
    made = memory({vector: elements, first: bytes(80) + struct.pack("<Q", state), state: at_state})
    found = list(cuda_generators(made, Layout(), vector))  # type: ignore[arg-type]
    assert found == [{"device": "cuda:1", "seed": 77, "offset": 16}]
