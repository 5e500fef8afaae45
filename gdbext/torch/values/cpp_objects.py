"""C++ objects: their classes by the symbol of a vtable, exceptions with their texts, counts of references, and how
parameters are passed.

The Itanium C++ ABI distinguishes classes so: a type_info has its name behind its table of virtual functions, one with
a single base then that base's type_info (cxxabi.h: __class_type_info, __si_class_type_info).
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Passing
from gdbext.engine.formats.demangle import demangle
from gdbext.errors import BadData, GdbextError
from gdbext.torch.values.containers import StringReader
from gdbext.torch.values.value_structures import ReferenceCounted

if TYPE_CHECKING:
    from gdbext.engine.layouts.declarations import Space
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer


class ClassNames:
    """Names of classes of one process, cached by vtable."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._names: dict[int, tuple[str, ...]] = {}

    def of(self, address: int) -> tuple[str, ...]:
        """Names of the class of the object at ``address``, aliases too; () if it has no vtable with a symbol.

        Raises MemoryFault.
        """
        vtable = self._memory.u64(address)
        if vtable not in self._names:
            # a vtable's symbol is two words before the address that objects point to (Itanium C++ ABI 2.5)
            mangled = self._symbolizer.names_at(vtable - 16)
            titles = [demangle(name) for name in mangled if name.startswith("_ZTV")]
            prefix = "vtable for "
            self._names[vtable] = tuple(title[len(prefix) :] for title in titles if title.startswith(prefix))
        return self._names[vtable]


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
    """Weak references to it, besides the one for all strong ones together. Raises LayoutError, MemoryFault."""
    counts = ReferenceCounted(space, address)
    if counts.has(ReferenceCounted.combined_refcount_):  # the upper half, without its highest bit, kHasPyObject
        return (counts.combined_refcount_ >> 32 & (1 << 31) - 1) - 1
    return counts.weakcount_ - 1


SINGLE_BASE = "_ZTVN10__cxxabiv120__si_class_type_infoE"
TEXT_AT = {"N3c105ErrorE": 8, "N5torch12PyTorchErrorE": 8, "12python_error": 32}
"""Classes → offset of their ``std::string`` (c10/util/Exception.h, torch/csrc/Exceptions.h; 2.0 to 2.15)."""
CHARACTERS_AT = {"St13runtime_error": 8, "St11logic_error": 8}
"""Classes → offset of their pointer to characters (libstdc++ <stdexcept>: __cow_string in either ABI)."""

_TEXT_LIMIT = 1 << 16


class CxxException(NamedTuple):
    """An exception: its class as C++ writes it, and its message, "" if that cannot be read."""

    type: str
    message: str


def read_exception(memory: Memory, symbolizer: Symbolizer, address: int) -> CxxException:
    """The exception object at ``address``, which was thrown. Raises MemoryFault, BadData."""
    # sizeof(__cxa_exception), which precedes the object; exceptionType is its first member (unwind-cxx.h of libstdc++,
    # the same since GCC 4)
    exception_type = type_info = memory.u64(address - 112)
    message = None
    for _ in range(16):  # the class, then its bases, as long as each has one
        name = _mangled(memory, type_info)
        message = _message(memory, address, name) if message is None else message
        if SINGLE_BASE not in symbolizer.names_at(memory.u64(type_info) - 16):
            break
        type_info = memory.u64(type_info + 16)
    return CxxException(type_name(memory, exception_type), message or "")


def _message(memory: Memory, address: int, name: str) -> str | None:
    """The text of an exception of that class, None for a class without a text of its own."""
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
    """The type as C++ writes it whose ``std::type_info`` is at that address. Raises MemoryFault, BadData."""
    name = _mangled(memory, type_info)
    if not name.isprintable() or not name:
        raise BadData(f"there is no type_info at {type_info:#x}")
    return demangle(f"_ZTS{name}").removeprefix("typeinfo name for ")


def mangled_class(memory: Memory, address: int) -> str:
    """The mangled name of the class of an object with virtual functions, as its type_info has it: stripped libraries
    keep that. Raises MemoryFault, BadData."""
    return _mangled(memory, memory.u64(memory.u64(address) - 8))


def _mangled(memory: Memory, type_info: int) -> str:
    name = memory.cstring(memory.u64(type_info + 8), 1024).decode("utf-8", "backslashreplace")
    return name.lstrip("*")  # a name that is compared by its address, of a type of one library


# --- parameters --------------------------------------------------------------------------------

OPTIONAL = re.compile(r"(?:std|c10)::optional<(.*?)\s*>$")
ENUMS = {"c10::ScalarType": "c10::ScalarType", "c10::Layout": "c10::Layout", "c10::MemoryFormat": "c10::MemoryFormat"}
STRING_VIEW = "string_view<char"
STRINGS = ("std::__cxx11::basic_string<", "std::basic_string<")
VECTOR = "std::vector<"
_NON_TRIVIAL = (
    "at::Tensor",
    "c10::SymInt",
    "at::Generator",
    "c10::Storage",
    "at::Storage",
    "c10::Scalar",
    "c10::IValue",
)
_OWNING = (*STRINGS, VECTOR, "c10::List<", "c10::Dict<", "c10::intrusive_ptr<")
"""Classes with destructors, whole names and beginnings: they are passed by the address of a copy."""
SCALAR_BYTES = {"long": 8, "bool": 1, "signed char": 1, "c10::Device": 2, **dict.fromkeys(ENUMS, 1)}
"""Types of one word → how many of its bytes they use."""
FLOATS = ("double", "float")


def has_destructor(kind: str) -> bool:
    """A class that is passed by the address of a copy, which the function may move its value out of."""
    return kind in _NON_TRIVIAL or kind.startswith(_OWNING)


def passing_of(kind: str, own_optional: bool = False) -> Passing | None:
    """How a parameter of that type is passed; None for a type that is not known.

    ``own_optional``: see ``containers.has_own_optional``.
    """
    if kind.endswith(("&", "*")) or has_destructor(kind) or kind in SCALAR_BYTES or kind.startswith("std::array<bool"):
        return Passing.WORD
    if kind in FLOATS:
        return Passing.FLOAT
    if kind.startswith("c10::ArrayRef<") or (STRING_VIEW in kind and "optional" not in kind):
        return Passing.TWO_WORDS
    optional = OPTIONAL.match(kind)
    inner = optional.group(1) if optional else ""
    if kind.startswith("c10::OptionalArrayRef<") or inner.startswith("c10::ArrayRef<"):
        return Passing.TWO_WORDS if own_optional else Passing.MEMORY
    if has_destructor(inner) or inner in SCALAR_BYTES:
        return Passing.TWO_WORDS if inner == "long" else Passing.WORD
    if inner == "double":
        return Passing.WORD_AND_FLOAT if own_optional else Passing.FLOAT_AND_WORD
    return Passing.MEMORY if STRING_VIEW in inner else None


def used_bytes(kind: str, number: int = 0) -> int:
    """Number of low bytes of its word ``number`` that a value of that type takes, at most."""
    if kind == "float":
        return 4
    optional = OPTIONAL.match(kind)
    if not optional:
        return SCALAR_BYTES.get(kind, 8)
    if number == 1 and kind.startswith("std::") and optional.group(1) in ("double", "long"):
        return 1  # whether the value is there
    return min(SCALAR_BYTES.get(optional.group(1), 8) + 2, 8)  # the value, and whether it is there
