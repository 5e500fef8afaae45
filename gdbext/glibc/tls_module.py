"""The TLS module id, or the static TLS offset, of a module, from what the dynamic linker wrote into its slots.

Only relocations that cannot mean another module count: those without a symbol (local-dynamic) and those of a symbol
that cannot be interposed. A variable that two libraries define, ``inline thread_local`` in a header for example, has
the id of the library that was loaded first in the slots of both.
Numbers: glibc ``elf/elf.h``; slots: System V ABI, AMD64 supplement 1.0, 4.4.1; TLSDESC: sysdeps/x86/dl-tlsdesc.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gdbext.errors import MemoryFault, SymbolFileError
from gdbext.formats.elf import PT_DYNAMIC, PT_TLS, Segment, parse_header, parse_segments
from gdbext.process.memory import PAGE_SIZE, Memory
from gdbext.process.modules import Module

_DTPMOD64, _TPOFF64, _TLSDESC = 16, 18, 36
_DT_PLTRELSZ, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 2, 6, 7, 8, 23
_DT_RELACOUNT = 0x6FFFFFF9
_AT_ENTRY = 9
_RELA = struct.Struct("<QIIq")
"""Elf64_Rela: r_offset, type and symbol of r_info, r_addend."""
_SYM = struct.Struct("<IBBHQQ")
_MAX_TABLE = 1 << 28
_MAX_DYNAMIC = 4096
_MAX_ID = 1 << 20
_MAX_STATIC = 1 << 31


class TlsPlace(NamedTuple):
    """Where a module's thread-local block is: in the dtv under ``module_id``, or at fs_base + ``static_offset``."""

    module_id: int | None
    static_offset: int | None


class _Relocation(NamedTuple):
    slot: int
    type: int
    value: int
    """st_value of the symbol (0 without one) + addend: the variable's offset in the block."""


def tls_place(module: Module, memory: Memory) -> TlsPlace:
    """What the module's relocations tell; (None, None) when they tell nothing."""
    module_id: int | None = None
    static: int | None = None
    for relocation in _Relocations(module, memory).own():
        try:
            first = memory.u64(module.base + relocation.slot)
            if relocation.type == _DTPMOD64:
                module_id = first if module_id is None and 0 < first < _MAX_ID else module_id
            elif relocation.type == _TPOFF64:
                static = _static(first, relocation) if static is None else static
            else:
                argument = memory.u64(module.base + relocation.slot + 8)
                dynamic = _dynamic_id(memory, argument, relocation)
                if dynamic is not None:
                    module_id = dynamic if module_id is None else module_id
                elif static is None:
                    static = _static(argument, relocation)
        except MemoryFault:
            continue
        if module_id is not None and static is not None:
            break
    if module_id is None and _is_program(module, memory):
        module_id = 1  # the program's is the first that is given (elf/rtld.c), and it never needs a slot
    return TlsPlace(module_id, static)


def _static(slot: int, relocation: _Relocation) -> int | None:
    """The block's offset from fs_base (negative), from a slot that holds a variable's; None if it makes no sense."""
    offset = slot - (1 << 64) - relocation.value if slot >> 63 else 0
    return offset if -_MAX_STATIC < offset < 0 else None


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
    entry = memory.target.auxv().get(_AT_ENTRY, 0)
    image = module.image
    return bool(entry) and image is not None and image.tls is not None and image.entry + module.base == entry


class _Relocations:
    """The TLS relocations of one module, from its file, or from memory where that is gone."""

    def __init__(self, module: Module, memory: Memory) -> None:
        self._module = module
        self._memory = memory
        self._read: Callable[[int, int], bytes | None]
        image = module.image
        if image is not None:
            self._read = image.read
            self._dynamic = image.dynamic if image.tls is not None else {}
        else:
            self._read = self._from_memory
            self._dynamic = self._dynamic_in_memory()

    def own(self) -> Iterator[_Relocation]:
        """Those that mean the module itself beyond doubt."""
        for slot, kind, symbol, addend in self._all():
            if symbol == 0:
                yield _Relocation(slot, kind, addend)
                continue
            data = self._read(self._vaddr(_DT_SYMTAB) + symbol * _SYM.size, _SYM.size)
            if data is None:
                continue
            _, info, other, section, value, _ = _SYM.unpack(data)
            if section != 0 and (info >> 4 == 0 or other & 3 != 0):  # defined here; STB_LOCAL or not STV_DEFAULT
                yield _Relocation(slot, kind, value + addend)

    def _all(self) -> Iterator[tuple[int, int, int, int]]:
        dynamic = self._dynamic
        skipped = _RELA.size * dynamic.get(_DT_RELACOUNT, 0)  # R_X86_64_RELATIVE come first
        for table, size, skip in (
            (self._vaddr(_DT_RELA), dynamic.get(_DT_RELASZ, 0), skipped),
            (self._vaddr(_DT_JMPREL), dynamic.get(_DT_PLTRELSZ, 0), 0),
        ):
            if not skip < size <= _MAX_TABLE:
                continue
            data = self._read(table + skip, size - skip)
            if data is not None:
                yield from _of_tls(data)

    def _vaddr(self, tag: int) -> int:
        """An address of the dynamic section; in memory the dynamic linker has made them absolute."""
        value = self._dynamic.get(tag, 0)
        return value - self._module.base if self._module.image is None and value >= self._module.base else value

    def _from_memory(self, vaddr: int, size: int) -> bytes | None:
        return self._memory.try_read(self._module.base + vaddr, size)

    def _dynamic_in_memory(self) -> dict[int, int]:
        segments = self._segments_in_memory()
        segment = next((s for s in segments if s.type == PT_DYNAMIC), None)
        if segment is None or not any(s.type == PT_TLS for s in segments):
            return {}
        data = self._from_memory(segment.vaddr, min(segment.memsz, 16 * _MAX_DYNAMIC) // 16 * 16)
        return dict(struct.iter_unpack("<QQ", data)) if data else {}

    def _segments_in_memory(self) -> tuple[Segment, ...]:
        data = self._memory.try_read(self._module.start, PAGE_SIZE)
        try:
            return parse_segments(data, parse_header(data)) if data else ()
        except SymbolFileError:
            return ()


def _of_tls(table: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(slot, type, symbol, addend) of the TLS relocations in a table of Elf64_Rela.

    There are 100,000 entries in libtorch and a handful is wanted, so their types are searched for as bytes.
    """
    for kind in (_DTPMOD64, _TPOFF64, _TLSDESC):
        pattern = struct.pack("<I", kind)
        position = table.find(pattern)
        while position >= 0:
            if position % _RELA.size == 8 and position + 16 <= len(table):
                entry: tuple[int, int, int, int] = _RELA.unpack_from(table, position - 8)
                yield entry
            position = table.find(pattern, position + 1)
