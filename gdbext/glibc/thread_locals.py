"""Thread-local variables of glibc's threads, found without debug information.

glibc (2.17 to 2.40; sysdeps/ARCH/nptl/tls.h ``tcbhead_t``, sysdeps/generic/dl-dtv.h ``dtv_t``): the thread pointer is
the address of the thread control block, which has its own address in it and the dynamic thread vector (``dtv``). The
dtv has entries of 16 bytes: in ``dtv[-1]`` the number of entries, in ``dtv[0]`` the generation, in ``dtv[id]`` the
address of the block of the module with that TLS module id, 0 or -1 while the thread has not used it. The id of a module
stands where the dynamic linker wrote it: in the slots of its own relocations.
"""

from __future__ import annotations

from gdbext.errors import GdbextError, MemoryFault
from gdbext.glibc.abi import glibc_abi
from gdbext.glibc.tls_module import TlsPlace, tls_place
from gdbext.model.record import Record
from gdbext.process.memory import Memory
from gdbext.process.modules import Module, ModuleTable

_DTV_ENTRY = 16
_UNALLOCATED = ((1 << 64) - 1, 0)
"""TLS_DTV_UNALLOCATED (dl-dtv.h), and the zeros of a vector that was made before the module was loaded."""
_MAX_ENTRIES = 1 << 20


class ThreadLocalUntouched(GdbextError):
    """This thread has never used the module's thread-local variables: they have their initial values."""


class ThreadLocalUnknown(GdbextError):
    """Where the variable is cannot be found out (another C library, no evidence of the module's id, damage)."""

    why = "the layout of thread-local storage is known for glibc only, and the module must have it"


class Dtv(Record):
    """A thread's dynamic thread vector: its address, number of entries and generation."""

    address: int
    entries: int
    generation: int


class ThreadLocals:
    """Finds thread-local variables; what is known of a module is kept, so ask one instance for all threads."""

    def __init__(self, memory: Memory, modules: ModuleTable) -> None:
        self._memory = memory
        self._modules = modules
        self._places: dict[int, TlsPlace] = {}

    def address(self, thread_pointer: int, module: Module, offset: int) -> int:
        """The address of the variable at ``offset`` (st_value of its STT_TLS symbol) of ``module`` in one thread.

        Raises ThreadLocalUntouched, ThreadLocalUnknown.
        """
        return self.block(thread_pointer, module) + offset

    def block(self, thread_pointer: int, module: Module) -> int:
        """The start of the module's thread-local block in that thread. Raises as ``address`` does."""
        place = self._place(module)
        try:
            dtv = self.vector(thread_pointer)
            if place.module_id is not None:
                found = self._entry(dtv, place.module_id)
                if found is not None:
                    return found
        except MemoryFault as fault:
            what = f"the thread control block at {thread_pointer:#x} is damaged: {fault.what}"
            raise ThreadLocalUnknown(what) from fault
        if place.static_offset is not None:
            return (thread_pointer + place.static_offset) & ((1 << 64) - 1)
        raise ThreadLocalUntouched(
            f"the thread with control block {thread_pointer:#x} has never used thread-local variables of {module.name}"
        )

    def vector(self, thread_pointer: int) -> Dtv:
        """The thread's dtv. Raises ThreadLocalUnknown where this is not a thread of glibc's, MemoryFault."""
        memory = self._memory
        if not thread_pointer:
            raise ThreadLocalUnknown("the thread pointer is not known")
        abi = glibc_abi(memory.architecture)
        if any(memory.u64(thread_pointer + offset) != thread_pointer for offset in abi.own_addresses):
            raise ThreadLocalUnknown(f"no glibc thread control block at {thread_pointer:#x}")
        address = memory.u64(thread_pointer + abi.dtv)
        entries = memory.u64(address - _DTV_ENTRY) if address > _DTV_ENTRY else 0
        if not 0 < entries <= _MAX_ENTRIES:
            raise ThreadLocalUnknown(f"the dynamic thread vector at {address:#x} claims {entries} entries")
        return Dtv(address, entries, memory.u64(address))

    def _entry(self, dtv: Dtv, module_id: int) -> int | None:
        if module_id > dtv.entries:
            return None
        value = self._memory.u64(dtv.address + _DTV_ENTRY * module_id)
        return None if value in _UNALLOCATED else value

    def _place(self, module: Module) -> TlsPlace:
        place = self._places.get(module.start)
        if place is None:
            if self._modules.named("libc.so.6") is None:
                raise ThreadLocalUnknown("this process does not use glibc's shared libc.so.6")
            place = self._places[module.start] = tls_place(module, self._memory)
        if place == TlsPlace(None, None):
            raise ThreadLocalUnknown(f"nothing in {module.name} tells its TLS module id")
        return place
