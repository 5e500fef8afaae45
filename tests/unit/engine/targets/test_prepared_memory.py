"""Reading into memory that was made before: the same bytes, whatever is left of it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdbext.engine.targets.live.stop_copy import PreparedMemory
from gdbext.engine.targets.system.linux import parse_maps
from gdbext.errors import MemoryFault

TEXT = bytes(range(256)) * 32


@pytest.fixture
def own() -> Iterator[int]:
    descriptor = os.open("/proc/self/mem", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("prepared", [0, 100, 8191, 8192, 20000])
def test_the_bytes_are_those_of_the_process(own: int, prepared: int) -> None:
    source = ctypes.create_string_buffer(TEXT, len(TEXT))
    memory = PreparedMemory(prepared)
    pieces = [memory.read(own, os.getpid(), ctypes.addressof(source) + at, 4096) for at in (0, 4096, 1000)]
    assert list(map(bytes, pieces)) == [TEXT[:4096], TEXT[4096:], TEXT[1000:5096]], "no piece lies over another"


def test_what_cannot_be_read_takes_nothing(own: int) -> None:
    source = ctypes.create_string_buffer(TEXT, len(TEXT))
    memory = PreparedMemory(4096)
    with pytest.raises(MemoryFault):
        memory.read(own, os.getpid(), 1 << 62, 4096)
    (end,) = (each.end for each in parse_maps(Path("/proc/self/maps").read_text()) if each.path == "[stack]")
    with pytest.raises(MemoryFault, match="only 16 bytes"):
        memory.read(own, os.getpid(), end - 16, 64)
    assert bytes(memory.read(own, os.getpid(), ctypes.addressof(source), 4096)) == TEXT[:4096]
