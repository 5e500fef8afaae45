"""The TLS module id, or the static TLS offset, of a module, from what the dynamic linker wrote into its slots.

Only relocations that cannot mean another module count: those without a symbol (local-dynamic) and those of a symbol
that cannot be interposed. A variable that two libraries define, ``inline thread_local`` in a header for example, has
the id of the library that was loaded first in the slots of both.
Numbers: glibc ``elf/elf.h``; TLSDESC: ``struct tlsdesc`` and ``tlsdesc_dynamic_arg``, sysdeps/ARCH/dl-tlsdesc.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from gdbext.errors import MemoryFault
from gdbext.formats.auxv import AT_ENTRY
from gdbext.formats.elf.elf import DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELACOUNT, DT_RELASZ, DT_SYMTAB, ElfImage
from gdbext.glibc.abi import glibc_abi
from gdbext.model.record import Record
from gdbext.process.memory import Memory
from gdbext.process.memory_image import image_in_memory
from gdbext.process.modules import Module

_RELA = struct.Struct("<QIIq")
"""Elf64_Rela: r_offset, type and symbol of r_info, r_addend."""
_SYM = struct.Struct("<IBBHQQ")
_MAX_TABLE = 1 << 28
_MAX_ID = 1 << 20
_MAX_STATIC = 1 << 31


class TlsPlace(Record):
    """Where a module's thread-local block is: in the dtv under ``module_id``, or at the thread pointer +
    ``static_offset``."""

    module_id: int | None
    static_offset: int | None


class _Relocation(Record):
    slot: int
    type: int
    value: int
    """st_value of the symbol (0 without one) + addend: the variable's offset in the block."""


def tls_place(module: Module, memory: Memory) -> TlsPlace:
    """What the module's relocations tell; (None, None) when they tell nothing."""
    module_id: int | None = None
    static: int | None = None
    types = memory.architecture.tls_relocations
    below = glibc_abi(memory.architecture).blocks_below
    for relocation in _Relocations(module, memory).own():
        try:
            first = memory.u64(module.base + relocation.slot)
            if relocation.type == types.module_id:
                module_id = first if module_id is None and 0 < first < _MAX_ID else module_id
            elif relocation.type == types.offset:
                static = _static(first, relocation, below) if static is None else static
            else:
                argument = memory.u64(module.base + relocation.slot + 8)
                dynamic = _dynamic_id(memory, argument, relocation)
                if dynamic is not None:
                    module_id = dynamic if module_id is None else module_id
                elif static is None:
                    static = _static(argument, relocation, below)
        except MemoryFault:
            continue
        if module_id is not None and static is not None:
            break
    if module_id is None and _is_program(module, memory):
        module_id = 1  # the program's is the first that is given (elf/rtld.c), and it never needs a slot
    return TlsPlace(module_id, static)


def _static(slot: int, relocation: _Relocation, below: bool) -> int | None:
    """The block's offset from the thread pointer, from a slot that holds a variable's; None if it makes no sense."""
    offset = (slot - (1 << 64) if slot >> 63 else slot) - relocation.value
    distance = -offset if below else offset
    return offset if 0 < distance < _MAX_STATIC else None


def _dynamic_id(memory: Memory, argument: int, relocation: _Relocation) -> int | None:
    """The id in the ``struct tlsdesc_dynamic_arg`` (module, offset, generation) that a descriptor points to."""
    if argument >> 63:
        return None
    try:
        module_id, offset = memory.words(argument, 2)
    except MemoryFault:
        return None
    return module_id if 0 < module_id < _MAX_ID and offset == relocation.value else None


def _is_program(module: Module, memory: Memory) -> bool:
    """True for the executable itself, when it has thread-local variables."""
    entry = memory.target.auxv().get(AT_ENTRY, 0)
    image = module.image
    return bool(entry) and image is not None and image.tls is not None and image.entry + module.base == entry


class _Relocations:
    """The TLS relocations of one module, from its file, or from memory where that is gone."""

    def __init__(self, module: Module, memory: Memory) -> None:
        self._types = memory.architecture.tls_relocations
        self._image = module.image or image_in_memory(module, memory)
        has_variables = self._image is not None and self._image.tls is not None
        self._dynamic = self._image.dynamic if self._image is not None and has_variables else {}

    def own(self) -> Iterator[_Relocation]:
        """Those that mean the module itself beyond doubt."""
        for slot, kind, symbol, addend in self._all():
            if symbol == 0:
                yield _Relocation(slot, kind, addend)
                continue
            data = self._read(self._dynamic.get(DT_SYMTAB, 0) + symbol * _SYM.size, _SYM.size)
            if data is None:
                continue
            _, info, other, section, value, _ = _SYM.unpack(data)
            if section != 0 and (info >> 4 == 0 or other & 3 != 0):  # defined here; STB_LOCAL or not STV_DEFAULT
                yield _Relocation(slot, kind, value + addend)

    def _read(self, vaddr: int, size: int) -> bytes | None:
        return self._image.read(vaddr, size) if self._image is not None else None

    def _all(self) -> Iterator[tuple[int, int, int, int]]:
        dynamic = self._dynamic
        skipped = _RELA.size * dynamic.get(DT_RELACOUNT, 0)  # relative relocations come first
        for table, size, skip in (
            (dynamic.get(DT_RELA, 0), dynamic.get(DT_RELASZ, 0), skipped),
            (dynamic.get(DT_JMPREL, 0), dynamic.get(DT_PLTRELSZ, 0), 0),
        ):
            if self._image is not None and skip < size <= _MAX_TABLE:
                yield from _of_types(self._image, table + skip, table + size, self._types)


def _of_types(image: ElfImage, start: int, end: int, types: Iterable[int]) -> Iterator[tuple[int, int, int, int]]:
    """(slot, type, symbol, addend) of the relocations of these types in a table of Elf64_Rela.

    There are 100,000 entries in libtorch and a handful is wanted, so their types are searched for as bytes.
    """
    for kind in types:
        pattern = struct.pack("<I", kind)
        position = image.find(pattern, start + 8, end, _RELA.size)
        while position is not None:
            entry = image.read(position - 8, _RELA.size)
            if entry is not None:
                yield _RELA.unpack(entry)
            position = image.find(pattern, position + _RELA.size, end, _RELA.size)
