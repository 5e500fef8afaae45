"""C++ objects by what they carry: the class by the symbol of a vtable, exceptions with their texts, counts of
references; and how parameters are passed.

Classes are told apart as the Itanium C++ ABI has them: a type_info holds its name behind its table of virtual
functions, one with a single base then that base's type_info (cxxabi.h: __class_type_info, __si_class_type_info).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Passing
from gdbext.engine.formats.demangle import demangle
from gdbext.errors import BadData, GdbextError
from gdbext.torch.values.containers import StringReader
from gdbext.torch.values.value_structures import ReferenceCounted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gdbext.engine.layouts.declarations import Space
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer

_PREFIX = "_ZTV"
_START = 16
"""A vtable's symbol is two words before the address that objects point to (Itanium C++ ABI 2.5)."""
_TITLE = "vtable for "


class ClassNames:
    """Names of classes, each vtable looked up once."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._names: dict[int, tuple[str, ...]] = {}

    def of(self, address: int) -> tuple[str, ...]:
        """Names of the class of the object at ``address``, aliases too; () where it has no vtable with a symbol.

        Raises MemoryFault.
        """
        vtable = self._memory.u64(address)
        found = self._names.get(vtable)
        if found is None:
            mangled = self._symbolizer.names_at(vtable - _START)
            titles = (demangle(name) for name in mangled if name.startswith(_PREFIX))
            found = self._names[vtable] = tuple(title[len(_TITLE) :] for title in titles if title.startswith(_TITLE))
        return found


def plain_class(name: str) -> str:
    """``MmBackward0`` of ``torch::autograd::generated::MmBackward0``; template arguments stay."""
    head, angle, arguments = name.partition("<")
    return head.rpartition("::")[2] + angle + arguments


_STRONG = (1 << 32) - 1
"""The lower half of ``combined_refcount_`` counts strong references (c10/util/intrusive_ptr.h, since 2.10)."""
_HAS_PYTHON_OBJECT = 1 << 63
"""``kHasPyObject``, in the half that counts weak references."""


def strong_references(space: Space, address: int) -> int:
    """Strong references to the object at ``address``. Raises LayoutError, MemoryFault."""
    counts = ReferenceCounted(space, address)
    if counts.has(ReferenceCounted.combined_refcount_):
        return counts.combined_refcount_ & _STRONG
    return counts.refcount_


def weak_references(space: Space, address: int) -> int:
    """Weak references to it, besides the one for all strong ones together. Raises LayoutError, MemoryFault."""
    counts = ReferenceCounted(space, address)
    if counts.has(ReferenceCounted.combined_refcount_):
        return ((counts.combined_refcount_ & ~_HAS_PYTHON_OBJECT) >> 32) - 1
    return counts.weakcount_ - 1


SINGLE_BASE = "_ZTVN10__cxxabiv120__si_class_type_infoE"
TEXT_AT = {"N3c105ErrorE": 8, "N5torch12PyTorchErrorE": 8, "12python_error": 32}
"""Classes → where their ``std::string`` is (c10/util/Exception.h, torch/csrc/Exceptions.h; 2.0 to 2.15)."""
CHARACTERS_AT = {"St13runtime_error": 8, "St11logic_error": 8}
"""Classes → where their pointer to characters is (libstdc++ <stdexcept>: __cow_string in either ABI)."""

_HEADER = 112
"""``sizeof(__cxa_exception)`` where pointers have 8 bytes: it stands before the object, and ``exceptionType`` is its
first member (libstdc++-v3/libsupc++/unwind-cxx.h, the same since GCC 4)."""
_NAME_LIMIT = 1024
_BASES_LIMIT = 16
_TEXT_LIMIT = 1 << 16


class CxxException(NamedTuple):
    """An exception: its class as C++ writes it, and its message, "" where that cannot be read."""

    type: str
    message: str


def read_exception(memory: Memory, symbolizer: Symbolizer, address: int) -> CxxException:
    """The exception object at ``address``, one that was thrown. Raises MemoryFault, BadData."""
    type_info = memory.u64(address - _HEADER)
    names = list(_classes(memory, symbolizer, type_info))
    message = next((text for name in names if (text := _message(memory, address, name)) is not None), "")
    return CxxException(type_name(memory, type_info), message)


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
    name = _text(memory, memory.u64(type_info + 8), _NAME_LIMIT)
    return name.lstrip("*")  # a name that is compared by its address, of a type of one library


def _classes(memory: Memory, symbolizer: Symbolizer, type_info: int) -> Iterator[str]:
    """The mangled names of a class and of its bases, as long as each has one."""
    for _ in range(_BASES_LIMIT):
        yield _mangled(memory, type_info)
        table = memory.u64(type_info)
        if SINGLE_BASE not in symbolizer.names_at(table - 16):
            return
        type_info = memory.u64(type_info + 16)


def _message(memory: Memory, address: int, name: str) -> str | None:
    """The text of an exception of that class, None for a class without a text of its own."""
    try:
        if name in CHARACTERS_AT:
            return _text(memory, memory.u64(address + CHARACTERS_AT[name]), _TEXT_LIMIT)
        if name in TEXT_AT:
            return _string(memory, address + TEXT_AT[name])
    except GdbextError:
        pass
    return None


def _text(memory: Memory, address: int, limit: int) -> str:
    return memory.cstring(address, limit).decode("utf-8", "backslashreplace")


def _string(memory: Memory, address: int) -> str:
    """A std::string of either ABI: the old one is a pointer only, what follows it in c10::Error is no length."""
    try:
        return StringReader(memory).read(address, _TEXT_LIMIT)
    except GdbextError:
        return StringReader(memory, cxx11=False).read(address, _TEXT_LIMIT)


# --- parameters --------------------------------------------------------------------------------

OPTIONAL = re.compile(r"(?:std|c10)::optional<(.*?)\s*>$")
ENUMS = {"c10::ScalarType": "c10::ScalarType", "c10::Layout": "c10::Layout", "c10::MemoryFormat": "c10::MemoryFormat"}
STRING_VIEW = "string_view<char"
STRINGS = ("std::__cxx11::basic_string<", "std::basic_string<")
VECTOR = "std::vector<"
_REFERENCES = (
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
WORDS = {"long": 8, "bool": 1, "signed char": 1, "c10::Device": 2, **dict.fromkeys(ENUMS, 1)}
"""Types of one word, and how many of its bytes they use."""
FLOATS = ("double", "float")


def has_destructor(kind: str) -> bool:
    """A class that is passed by the address of a copy, which the function may move its value out of."""
    return kind in _REFERENCES or kind.startswith(_OWNING)


def passing_of(kind: str, own_optional: bool = False) -> Passing | None:
    """The way in which a parameter of that type is passed; None for a type that is not known.

    ``own_optional``: see ``containers.has_own_optional``.
    """
    if kind.endswith(("&", "*")) or has_destructor(kind) or kind in WORDS or kind.startswith("std::array<bool"):
        return Passing.WORD
    if kind in FLOATS:
        return Passing.FLOAT
    if kind.startswith("c10::ArrayRef<") or (STRING_VIEW in kind and "optional" not in kind):
        return Passing.TWO_WORDS
    found = OPTIONAL.match(kind)
    if kind.startswith("c10::OptionalArrayRef<") or (found and found.group(1).startswith("c10::ArrayRef<")):
        return Passing.TWO_WORDS if own_optional else Passing.MEMORY
    return _optional_passing(found.group(1), own_optional) if found else None


def _optional_passing(inner: str, own: bool) -> Passing | None:
    if has_destructor(inner):
        return Passing.WORD
    if inner == "double":
        return Passing.WORD_AND_FLOAT if own else Passing.FLOAT_AND_WORD
    if inner == "long":
        return Passing.TWO_WORDS
    if STRING_VIEW in inner:
        return Passing.MEMORY
    return Passing.WORD if inner in WORDS else None


def used_bytes(kind: str, number: int = 0) -> int:
    """Number of low bytes of its word ``number`` that a value of that type takes, at most."""
    if kind == "float":
        return 4
    found = OPTIONAL.match(kind)
    if not found:
        return WORDS.get(kind, 8)
    if number == 1 and kind.startswith("std::") and found.group(1) in ("double", "long"):
        return 1  # whether the value is there
    size = WORDS.get(found.group(1), 8)
    return min(size + 2, 8)  # the value, and whether it is there
