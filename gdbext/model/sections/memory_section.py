"""What ``dispatch-info --memory`` reports: what the tensors hold that Python knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.hexadecimal import Hexadecimal
from gdbext.model.record import Record
from gdbext.model.sections.section import Section


class HeldMemory(Record):
    """The storages of tensors of one dtype on one device; one that tensors of several dtypes share counts as the
    first that was found."""

    dtype: str
    device: str
    storages: int
    bytes: int


class LargeStorage(Record):
    """A storage with one of its tensors: ``tensor`` is like "f32[4, 4] CPU", ``name`` "Linear.weight" where it is a
    parameter or buffer of a module, "" where it is not known to be."""

    address: Hexadecimal
    bytes: int
    tensor: str
    name: str


class CudaMemory(Record):
    """What CUDA's caching allocator counts for one device, by the names of torch.cuda.memory_stats()."""

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
    """Most bytes first."""
    largest: tuple[LargeStorage, ...]
    truncated: tuple[str, ...]
    problems: tuple[str, ...]
    cuda: tuple[CudaMemory, ...] = ()
    """Devices that were used, where a build for CUDA is loaded."""
