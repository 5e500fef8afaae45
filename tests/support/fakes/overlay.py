"""A real target with some of its memory changed or missing, to see what damage does."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from gdbext.engine.targets.base_target import Target
from gdbext.errors import MemoryFault


def overlaid(
    target: Target, patches: Mapping[int, bytes] | None = None, holes: Sequence[tuple[int, int]] = ()
) -> Target:
    """The target, but ``patches`` (address to bytes) lie over its memory, and ``holes`` are unreadable."""

    def read(address: int, size: int) -> bytes:
        for start, length in holes:
            if address < start + length and start < address + size:
                raise MemoryFault(max(address, start), size, "a hole made by the test")
        raw = bytearray(target.memory.read(address, size))
        for start, contents in (patches or {}).items():
            low, high = max(start, address), min(start + len(contents), address + size)
            if low < high:
                raw[low - address : high - address] = contents[low - start : high - start]
        return bytes(raw)

    found: Any = copy.copy(target)
    found.read = read
    damaged: Target = found
    return damaged
