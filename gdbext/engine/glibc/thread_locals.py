"""Finds thread-local variables of glibc's threads without debug information.

glibc (2.17 to 2.40; sysdeps/ARCH/nptl/tls.h ``tcbhead_t``, sysdeps/generic/dl-dtv.h ``dtv_t``): the thread pointer is
the address of the thread control block, which contains its own address and the dynamic thread vector (``dtv``). The dtv
has entries of 16 bytes: in ``dtv[-1]`` the number of entries, in ``dtv[0]`` the generation, in ``dtv[id]`` the address
of the block of the module with that TLS module id, 0 or -1 while the thread has not used it.

The dynamic linker writes the id of a module, or its static TLS offset, into the slots of the module's relocations. Only
relocations that cannot mean another module count: those without a symbol (local-dynamic), or with a symbol that cannot
be interposed. (If two libraries define a variable, the slots of both have the id of the library that was loaded first.)
TLSDESC: ``struct tlsdesc`` and ``tlsdesc_dynamic_arg``, sysdeps/ARCH/dl-tlsdesc.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from gdbext.engine.formats.elf import DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELACOUNT, DT_RELASZ, DT_SYMTAB, ElfImage
from gdbext.engine.formats.elf_header import AT_ENTRY
from gdbext.engine.glibc.pthread import glibc_abi
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module, ModuleTable, image_in_memory
from gdbext.errors import GdbextError, MemoryFault

_RELA = struct.Struct("<QIIq")  # Elf64_Rela: r_offset, type and symbol of r_info, r_addend
_SYM = struct.Struct("<IBBHQQ")
_MAX_ID = 1 << 20


class TlsPlace(NamedTuple):
    """The location of a module's thread-local block: in the dtv under ``module_id``, or at the thread pointer +
    ``static_offset``; each is 0 if unknown."""

    module_id: int
    static_offset: int


class _Relocation(NamedTuple):
    """A relocation of a thread-local variable."""

    slot: int  # the address, in the file, of the word that the loader fills
    type: int  # R_*
    value: int  # st_value of the symbol (0 without one) + addend: the variable's offset in the block


def _tls_place(module: Module, memory: Memory) -> TlsPlace:
    """The location of the module's block by its relocations; (0, 0) if they do not tell it."""
    module_id = static = 0
    types = memory.architecture.tls_relocations
    below = glibc_abi(memory.architecture).blocks_below
    for relocation in _own_relocations(module, memory):
        try:
            first = memory.u64(module.base + relocation.slot)
            if relocation.type == types.module_id:
                module_id = module_id or (first if 0 < first < _MAX_ID else 0)
            elif relocation.type == types.offset:
                static = static or _static_offset(first, relocation, below)
            else:
                argument = memory.u64(module.base + relocation.slot + 8)
                # struct tlsdesc_dynamic_arg (module, offset, generation), if the descriptor points to one
                dynamic_id = offset = 0
                if not argument >> 63:
                    with suppress(MemoryFault):
                        dynamic_id, offset = memory.words(argument, 2)
                if 0 < dynamic_id < _MAX_ID and offset == relocation.value:
                    module_id = module_id or dynamic_id
                else:
                    static = static or _static_offset(argument, relocation, below)
        except MemoryFault:
            continue
        if module_id and static:
            break
    image = module.image
    if not module_id and image and image.tls:
        is_program = image.entry + module.base == memory.target.memory.auxv().get(AT_ENTRY)
        module_id = 1 if is_program else 0  # the program gets the first id (elf/rtld.c), and it never needs a slot
    return TlsPlace(module_id, static)


def _static_offset(slot: int, relocation: _Relocation, below: bool) -> int:
    """The offset of the module's block from the thread pointer; 0 if it is impossible. ``slot``: the variable's offset
    that the loader wrote; ``below``: glibc puts the blocks below the thread pointer."""
    offset = (slot - (1 << 64) if slot >> 63 else slot) - relocation.value
    return offset if 0 < (-offset if below else offset) < 1 << 31 else 0


def _own_relocations(module: Module, memory: Memory) -> Iterator[_Relocation]:
    """The TLS relocations that certainly mean the module itself, from its file, or from memory if the file is gone."""
    image = module.image or image_in_memory(module, memory)
    if not image or not image.tls:
        return
    dynamic = image.dynamic
    skipped = _RELA.size * dynamic.get(DT_RELACOUNT, 0)  # relative relocations come first
    for table, size, skip in (
        (dynamic.get(DT_RELA, 0), dynamic.get(DT_RELASZ, 0), skipped),
        (dynamic.get(DT_JMPREL, 0), dynamic.get(DT_PLTRELSZ, 0), 0),
    ):
        if not skip < size <= 1 << 28:
            continue
        for slot, kind, symbol, addend in _entries(image, table + skip, table + size, memory):
            if symbol == 0:
                yield _Relocation(slot, kind, addend)
                continue
            data = image.read(dynamic.get(DT_SYMTAB, 0) + symbol * _SYM.size, _SYM.size)
            if not data:
                continue
            _, info, other, section, value, _ = _SYM.unpack(data)
            if section != 0 and (info >> 4 == 0 or other & 3 != 0):  # defined here; STB_LOCAL or not STV_DEFAULT
                yield _Relocation(slot, kind, value + addend)


def _entries(image: ElfImage, start: int, end: int, memory: Memory) -> Iterator[tuple[int, int, int, int]]:
    """(slot, type, symbol, addend) of the TLS relocations in a table of Elf64_Rela. libtorch has 100,000 entries, and a
    handful of these: their types are searched for as bytes."""
    for kind in memory.architecture.tls_relocations:
        pattern = struct.pack("<I", kind)
        position = image.find(pattern, start + 8, end, _RELA.size)
        while position is not None:
            entry = image.read(position - 8, _RELA.size)
            if entry:
                yield _RELA.unpack(entry)
            position = image.find(pattern, position + _RELA.size, end, _RELA.size)


_DTV_ENTRY = 16  # bytes


class ThreadLocalUntouched(GdbextError):
    """This thread has never used the module's thread-local variables: they have their initial values."""


class ThreadLocalUnknown(GdbextError):
    """The place of the variable is unknown (another C library, no evidence of the module's id, damage)."""

    why = "the layout of thread-local storage is known for glibc only, and the module must have it"


class ThreadLocals:
    """Finds thread-local variables. It caches the locations of modules: use one instance for all threads."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self._memory = memory
        self._modules = modules
        self._places: dict[int, TlsPlace] = {}

    def address(self, thread_pointer: int, module: Module, offset: int) -> int:
        """The address of the variable at ``offset`` (st_value of its STT_TLS symbol) of ``module`` in one thread.
        Raises ThreadLocalUntouched, ThreadLocalUnknown."""
        return self.block(thread_pointer, module) + offset

    def block(self, thread_pointer: int, module: Module) -> int:
        """The address of the module's thread-local block in that thread. Raises as ``address`` does."""
        place = self._place(module)
        try:
            vector, entries = self._vector(thread_pointer)
            if 0 < place.module_id <= entries:
                block = self._memory.u64(vector + _DTV_ENTRY * place.module_id)
                # TLS_DTV_UNALLOCATED (dl-dtv.h), or 0 in a vector that was made before the module was loaded
                if block not in ((1 << 64) - 1, 0):
                    return block
        except MemoryFault as fault:
            what = f"the thread control block at {thread_pointer:#x} is damaged: {fault.what}"
            raise ThreadLocalUnknown(what) from fault
        if place.static_offset:
            return (thread_pointer + place.static_offset) & ((1 << 64) - 1)
        raise ThreadLocalUntouched(
            f"the thread with control block {thread_pointer:#x} has never used thread-local variables of {module.name}"
        )

    def _vector(self, thread_pointer: int) -> tuple[int, int]:
        """(address, number of entries) of the thread's dtv. Raises ThreadLocalUnknown if there is no control block of
        glibc's, MemoryFault."""
        memory = self._memory
        if not thread_pointer:
            raise ThreadLocalUnknown("the thread pointer is not known")
        abi = glibc_abi(memory.architecture)
        if any(memory.u64(thread_pointer + offset) != thread_pointer for offset in abi.own_addresses):
            raise ThreadLocalUnknown(f"no glibc thread control block at {thread_pointer:#x}")
        address = memory.u64(thread_pointer + abi.dtv)
        entries = memory.u64(address - _DTV_ENTRY) if address > _DTV_ENTRY else 0
        if not 0 < entries <= 1 << 20:
            raise ThreadLocalUnknown(f"the dynamic thread vector at {address:#x} claims {entries} entries")
        return address, entries

    def _place(self, module: Module) -> TlsPlace:
        """The location of a module's block, which is the same for all threads. Raises ThreadLocalUnknown."""
        if not self._modules.named("libc.so.6"):
            raise ThreadLocalUnknown("this process does not use glibc's shared libc.so.6")
        if module.start not in self._places:
            self._places[module.start] = _tls_place(module, self._memory)
        place = self._places[module.start]
        if place == TlsPlace(module_id=0, static_offset=0):
            raise ThreadLocalUnknown(f"nothing in {module.name} gives its TLS module id")
        return place
