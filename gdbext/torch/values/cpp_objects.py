"""C++ objects: their classes by the symbol of a vtable, exceptions with their texts, and counts of references.

The Itanium C++ ABI distinguishes classes so: a type_info has its name behind its table of virtual functions, one with
a single base then that base's type_info (cxxabi.h: __class_type_info, __si_class_type_info).
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from gdbext.engine.formats.demangle import demangle
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, GdbextError
from gdbext.torch.memoized import memoized
from gdbext.torch.values.containers import StringReader
from gdbext.torch.values.value_structures import ReferenceCounted


class ClassNames:
    """Names of C++ classes of one process."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer

    def of(self, address: int) -> tuple[str, ...]:
        """Names of the class of the object at ``address``, aliases too; () if it has no vtable with a symbol. Raises
        MemoryFault."""
        return self._names_of_vtable(self._memory.u64(address))

    @memoized
    def _names_of_vtable(self, vtable: int) -> tuple[str, ...]:
        """The classes with the vtable that objects point to at ``vtable``; its symbol is two words before that (Itanium
        C++ ABI 2.5)."""
        titles = [demangle(name) for name in self._symbolizer.names_at(vtable - 16) if name.startswith("_ZTV")]
        return tuple(title.removeprefix("vtable for ") for title in titles if title.startswith("vtable for "))


def plain_class(name: str) -> str:
    """``MmBackward0`` of ``torch::autograd::generated::MmBackward0``; template arguments stay."""
    head, angle, arguments = name.partition("<")
    return head.rpartition("::")[2] + angle + arguments


def strong_references(space: Space, address: int) -> int:
    """Strong references to the object at ``address``. Raises LayoutError, MemoryFault."""
    counts = ReferenceCounted(space, address)
    if counts.has(ReferenceCounted.combined_refcount_):  # its lower half (c10/util/intrusive_ptr.h, since 2.10)
        return counts.combined_refcount_ & (1 << 32) - 1
    return counts.refcount_


def weak_references(space: Space, address: int) -> int:
    """Weak references to the object at ``address``, besides the one that all strong ones have together. Raises
    LayoutError, MemoryFault."""
    counts = ReferenceCounted(space, address)
    if counts.has(ReferenceCounted.combined_refcount_):  # the upper half, without its highest bit, kHasPyObject
        return (counts.combined_refcount_ >> 32 & (1 << 31) - 1) - 1
    return counts.weakcount_ - 1


SINGLE_BASE = "_ZTVN10__cxxabiv120__si_class_type_infoE"
TEXT_AT = {"N3c105ErrorE": 8, "N5torch12PyTorchErrorE": 8, "12python_error": 32}
"""Classes → offset of their ``std::string`` (c10/util/Exception.h, torch/csrc/Exceptions.h; 2.0 to 2.15)."""
CHARACTERS_AT = {"St13runtime_error": 8, "St11logic_error": 8}
"""Classes → offset of their pointer to characters (libstdc++ <stdexcept>: __cow_string in either ABI)."""


class CxxException(NamedTuple):
    """An exception: its class as C++ writes it, and its message, "" if that cannot be read."""

    type: str
    message: str


def read_exception(memory: Memory, symbolizer: Symbolizer, address: int) -> CxxException:
    """The class and the message of the thrown exception object at ``address``. Raises MemoryFault, BadData."""
    # sizeof(__cxa_exception), which precedes the object; exceptionType is its first member (unwind-cxx.h of libstdc++,
    # the same since GCC 4)
    exception_type = type_info = memory.u64(address - 112)
    message: str | None = None
    for _ in range(16):  # the class, then its bases, as long as each has one
        name = _mangled(memory, type_info)
        message = _exception_text(memory, address, name) if message is None else message
        if SINGLE_BASE not in symbolizer.names_at(memory.u64(type_info) - 16):
            break
        type_info = memory.u64(type_info + 16)
    return CxxException(type_name(memory, exception_type), message or "")


def _exception_text(memory: Memory, address: int, name: str) -> str | None:
    """The message of the exception at ``address``, which is of the class with the mangled ``name`` or of one derived
    from it; None for a class that keeps no message, or if it cannot be read."""
    limit = 1 << 16
    with suppress(GdbextError):
        if name in CHARACTERS_AT:
            characters = memory.cstring(memory.u64(address + CHARACTERS_AT[name]), limit)
            return characters.decode("utf-8", "backslashreplace")
        if name in TEXT_AT:
            # of either ABI: the old one is a pointer only, what follows it in c10::Error is no length
            text = address + TEXT_AT[name]
            with suppress(GdbextError):
                return StringReader(memory).read(text, limit)
            return StringReader(memory, cxx11=False).read(text, limit)
    return None


def type_name(memory: Memory, type_info: int) -> str:
    """The type whose ``std::type_info`` is at that address, as C++ writes it. Raises MemoryFault, BadData."""
    name = _mangled(memory, type_info)
    if not name.isprintable() or not name:
        raise BadData(f"there is no type_info at {type_info:#x}")
    return demangle(f"_ZTS{name}").removeprefix("typeinfo name for ")


def mangled_class(memory: Memory, address: int) -> str:
    """The mangled name of the class of the object at ``address``, which has virtual functions, by its type_info, which
    stripped libraries keep. Raises MemoryFault, BadData."""
    return _mangled(memory, memory.u64(memory.u64(address) - 8))


def _mangled(memory: Memory, type_info: int) -> str:
    """The mangled name of the type whose ``std::type_info`` is at that address."""
    name = memory.cstring(memory.u64(type_info + 8), 1024).decode("utf-8", "backslashreplace")
    return name.lstrip("*")  # a name that is compared by its address, of a type of one library
