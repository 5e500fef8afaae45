"""Settings of the allocators of accelerators (PYTORCH_ALLOC_CONF, torch.cuda.memory._set_allocator_settings).

c10/core/AllocatorConfig.h (since 2.9) and c10/cuda/CUDAAllocatorConfig.h, by their members' names: what a release has
besides is read as well.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gdbext.layouts.layout import Layout
from gdbext.model.sections.settings_section import SettingValue
from gdbext.process.memory import Memory
from gdbext.process.struct_view import Field, Struct
from gdbext.torch.values.containers import StringReader, string_reader, vector_span

GENERAL, OF_CUDA = (
    "c10::CachingAllocator::AcceleratorAllocatorConfig",
    "c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig",
)
UNLIMITED = (1 << 64) - 1
"""std::numeric_limits<size_t>::max(): nobody has set a limit."""
_SETTINGS = "last_allocator_settings"
_DIVISIONS = "roundup_power2_divisions"
_DIVISION_LIMIT = 64


def allocator_settings(memory: Memory, layout: Layout, kind: str, address: int) -> dict[str, SettingValue]:
    """Member to value, of the object of class ``kind`` at ``address``; None for no limit. Members that are no number,
    flag or text are left out. Raises LayoutError, BadData, MemoryFault."""
    shape = layout.struct(kind)
    strings = string_reader(memory, layout)
    return dict(_members(memory, shape, strings, address))


def _members(
    memory: Memory, shape: Struct, strings: StringReader, address: int
) -> Iterator[tuple[str, SettingValue]]:
    for field in shape.fields.values():
        name = field.name.removeprefix("m_").rstrip("_")
        at = address + field.offset
        if name == _SETTINGS:
            yield name, strings.read(at)
        elif name == _DIVISIONS:
            first, count = vector_span(memory, at, 8, _DIVISION_LIMIT)
            yield name, tuple(memory.words(first, count)) if count else ()
        elif "." not in field.name:
            found = _number(memory, field, at)
            if found is not None:
                yield name, found[0]


def _number(memory: Memory, field: Field, address: int) -> tuple[SettingValue] | None:
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
