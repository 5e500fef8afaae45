"""Values of the C++ types that operators take: how they are passed, and the text of the words that are.

Types are those of torchgen/api/cpp.py as the demangler writes them. Layouts: c10/core/Scalar.h, c10/util/ArrayRef.h,
OptionalArrayRef.h, ATen/core/List.h, IListRef.h, 2.13.0.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gdbext.engine.arch import Architecture, Passing, Slot
from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.numbers import number
from gdbext.engine.process.memory import Memory
from gdbext.errors import BadData, GdbextError
from gdbext.torch.memoized import memoized
from gdbext.torch.values import value_structures as structures
from gdbext.torch.values.containers import OptionalShape, has_own_optional, optional_shape, string_reader, vector_span
from gdbext.torch.values.value_text import device_text, python_name, quoted

LIST_LIMIT = 64
"""Elements of a list that are shown."""
_LONGEST = 1 << 16
_TEXT_LIMIT = 200
_PYTHON_NAMES = {
    "Contiguous": "contiguous_format",
    "Preserve": "preserve_format",
    "ChannelsLast": "channels_last",
    "ChannelsLast3d": "channels_last_3d",
    "Sparse": "sparse_coo",
    "SparseCsr": "sparse_csr",
    "Mkldnn": "_mkldnn",
    "SparseCsc": "sparse_csc",
    "SparseBsr": "sparse_bsr",
    "SparseBsc": "sparse_bsc",
}
"""Memory formats and layouts as Python has them (torch/csrc/utils/tensor_memoryformats.cpp, tensor_layouts.cpp), where
that is not the name in small letters."""


_OPTIONAL = re.compile(r"(?:std|c10)::optional<(.*?)\s*>$")
_ENUMS = ("c10::ScalarType", "c10::Layout", "c10::MemoryFormat")
_STRING_VIEW = "string_view<char"
_STRINGS = ("std::__cxx11::basic_string<", "std::basic_string<")
_VECTOR = "std::vector<"
_NON_TRIVIAL = (
    "at::Tensor",
    "c10::SymInt",
    "at::Generator",
    "c10::Storage",
    "at::Storage",
    "c10::Scalar",
    "c10::IValue",
)
_OWNING = (*_STRINGS, _VECTOR, "c10::List<", "c10::Dict<", "c10::intrusive_ptr<")
"""Classes with destructors, whole names and beginnings: they are passed by the address of a copy."""
_SCALAR_BYTES = {"long": 8, "bool": 1, "signed char": 1, "c10::Device": 2, **dict.fromkeys(_ENUMS, 1)}
"""Types of one word → how many of its bytes they use."""
FLOATS = ("double", "float")


def has_destructor(kind: str) -> bool:
    """True for a class that is passed by the address of a copy, from which the function may move the value."""
    return kind in _NON_TRIVIAL or kind.startswith(_OWNING)


def passing_of(kind: str, own_optional: bool = False) -> Passing | None:
    """How a parameter of the C++ type ``kind`` is passed; None for an unknown type. ``own_optional``: the process has
    ``c10::optional``, see ``containers.has_own_optional``."""
    if kind.endswith(("&", "*")) or has_destructor(kind) or kind in _SCALAR_BYTES or kind.startswith("std::array<bool"):
        return Passing.WORD
    if kind in FLOATS:
        return Passing.FLOAT
    if kind.startswith("c10::ArrayRef<") or (_STRING_VIEW in kind and "optional" not in kind):
        return Passing.TWO_WORDS
    optional = _OPTIONAL.match(kind)
    inner = optional.group(1) if optional else ""
    if kind.startswith("c10::OptionalArrayRef<") or inner.startswith("c10::ArrayRef<"):
        return Passing.TWO_WORDS if own_optional else Passing.MEMORY
    if has_destructor(inner) or inner in _SCALAR_BYTES:
        return Passing.TWO_WORDS if inner == "long" else Passing.WORD
    if inner == "double":
        return Passing.WORD_AND_FLOAT if own_optional else Passing.FLOAT_AND_WORD
    return Passing.MEMORY if _STRING_VIEW in inner else None


def used_bytes(kind: str, number: int = 0) -> int:
    """Number of low bytes that a value of the C++ type ``kind`` takes, at most, of its word ``number`` (from 0)."""
    if kind == "float":
        return 4
    optional = _OPTIONAL.match(kind)
    if not optional:
        return _SCALAR_BYTES.get(kind, 8)
    if number == 1 and kind.startswith("std::") and optional.group(1) in ("double", "long"):
        return 1  # whether the value is there
    return min(_SCALAR_BYTES.get(optional.group(1), 8) + 2, 8)  # the value, and whether it is there


class Value(NamedTuple):
    """A value of an operator's argument."""

    text: str
    tensors: tuple[int, ...] = ()
    """Addresses of the TensorImpls in it, 0 for an undefined tensor."""
    proven: bool = False
    """Something about it can only be so if it is of its type: the vtable of a tensor."""


def argument_slots(
    architecture: Architecture, layout: Layout, kinds: Sequence[str], leading: int
) -> list[tuple[Slot, ...]]:
    """The registers or stack slots of ``leading`` words, and behind them of parameters of the C++ types ``kinds`` up to
    the first unknown one: a tuple of slots for each."""
    passings = [Passing.WORD] * leading
    for kind in kinds:
        passing = passing_of(kind, has_own_optional(layout))
        if not passing:
            break
        passings.append(passing)
    return architecture.place_arguments(passings)


def float_value(kind: str, word: int) -> Value:
    """A ``double`` or ``float`` in the low bytes of a word."""
    raw = word.to_bytes(8, "little")
    if kind == "double":
        return Value(repr(struct.unpack("<d", raw)[0]))
    return Value(f"{struct.unpack_from('<f', raw)[0]:.9g}")


class CppValues:
    """Reads values of one process. Raises BadData and MemoryFault for words that cannot be such a value."""

    def __init__(self, memory: Memory, layout: Layout, tensor: Callable[[int], str]) -> None:
        """``tensor`` returns the short form of the TensorImpl at an address; it raises BadData if there is none."""
        self._memory = memory
        self._layout = layout
        self._tensor_text = tensor
        self._space = Space(memory, layout)
        self.ivalue_size = structures.IValue.size(self._space)
        self._dtypes = [python_name(name) for name, _size in layout.dispatch("scalar_types")]

    def read(self, kind: str, words: Sequence[int]) -> Value:
        """The parameter of the C++ type ``kind`` that is passed in these words (registers or stack slots)."""
        plain = kind.removesuffix("&").removesuffix(" const").strip()
        if kind.endswith("&") or has_destructor(kind):
            return self.stored(plain, words[0])
        optional = _OPTIONAL.match(kind)
        if optional:
            inner = optional.group(1)
            return self.stored(plain, words[0]) if has_destructor(inner) else self._optional(inner, words)
        if kind.startswith("c10::OptionalArrayRef<"):
            return self._optional_array(kind[len("c10::OptionalArrayRef<") : -1], words)
        if kind.startswith("c10::ArrayRef<"):
            return self._array(kind[len("c10::ArrayRef<") : -1], words)
        if _STRING_VIEW in kind:
            return self._string(*self._view(words))
        return self._word(kind, words[0])

    def slots(self, kinds: Sequence[str], leading: int) -> list[tuple[Slot, ...]]:
        """As ``argument_slots``, for this process."""
        return argument_slots(self._memory.architecture, self._layout, kinds, leading)

    def _word(self, kind: str, word: int) -> Value:
        """The value of the C++ type ``kind``, which takes one word."""
        if kind in FLOATS:
            return float_value(kind, word)
        if kind.startswith("std::array<bool"):
            count = number(re.sub(r"\D", "", kind.rpartition(",")[2])) or 0
            return Value(f"[{', '.join(str(bool(word >> 8 * index & 1)) for index in range(min(count, 8)))}]")
        size = _SCALAR_BYTES.get(kind)
        if not size:
            raise BadData(f"values of type {kind} are not supported")
        value = word & (1 << 8 * size) - 1
        if kind == "bool":
            return Value(str(_boolean(value)))
        if kind in _ENUMS:
            return Value(self._enumerator(kind, value))
        if kind == "c10::Device":
            return Value(self.device(value))
        return Value(str(_signed(value, size)))

    def dtype(self, number: int) -> str:
        """``torch.float32`` of a c10::ScalarType's number, which a caffe2::TypeMeta has, too. Raises BadData."""
        if number >= len(self._dtypes):
            raise BadData(f"there is no dtype {number}")
        return f"torch.{self._dtypes[number]}"

    def device(self, value: int) -> str:
        """``cuda:0`` of a c10::Device's two bytes: type, then index. Raises BadData."""
        names = {number: name for name, number in self._layout.renamed_enum("c10::DeviceType").items()}
        if value & 255 not in names:
            raise BadData(f"there is no device type {value & 255}")
        return device_text(names, value & 255, value >> 8)

    def _enumerator(self, kind: str, value: int) -> str:
        """An enumerator, by its number, of the enumeration ``kind`` (one of ``_ENUMS``) as Python writes it. Raises
        BadData."""
        if kind == "c10::ScalarType":
            return self.dtype(value)
        name = self._names(kind).get(value)
        if name is None:
            raise BadData(f"there is no {kind} {value}")
        return f"torch.{_PYTHON_NAMES.get(name, name.lower())}"

    def _optional(self, inner: str, words: Sequence[int]) -> Value:
        """An optional of the C++ type ``inner`` that is passed in registers: ``words`` are its bytes, in order."""
        if inner.startswith("c10::ArrayRef<"):
            return self._optional_array(inner[len("c10::ArrayRef<") : -1], words)
        raw = b"".join(word.to_bytes(8, "little") for word in words)
        shape = self._shape(structures.StringView.OF if _STRING_VIEW in inner else inner)
        if not _boolean(raw[shape.engaged]):
            return Value("None")
        if _STRING_VIEW in inner:
            return self._string(*self._view(words[shape.value // 8 :]))
        return self._word(inner, int.from_bytes(raw[shape.value : shape.value + 8], "little"))

    def _optional_array(self, inner: str, words: Sequence[int]) -> Value:
        """An optional ArrayRef of ``inner``, by its words: address, length and (std::optional) the flag."""
        has_value = not words[1] or words[0] != 0 if has_own_optional(self._layout) else words[2] & 1
        return self._array(inner, words) if has_value else Value("None")

    def _shape(self, inner: str) -> OptionalShape:
        """The shape of an optional of the C++ type ``inner``."""
        if has_destructor(inner) and not has_own_optional(self._layout):
            return OptionalShape(0, self._size(inner))
        return optional_shape(self._layout, {"long": "int64_t"}.get(inner, inner))

    def _view(self, words: Sequence[int]) -> tuple[int, int]:
        """(address, length) of a string_view by its two words: c10's own of torch before 2.6 (c10/util/string_view.h)
        has them in this order, libstdc++'s in the other one."""
        view = structures.StringView
        first = view._M_str if view._M_str.is_in(self._layout) else view.begin_
        return (words[0], words[1]) if first.offset(self._space) == 0 else (words[1], words[0])

    def _string(self, address: int, length: int) -> Value:
        """The ``length`` characters at an address, quoted and cut after 200."""
        if length > _LONGEST:
            raise BadData(f"a string claims {length} bytes")
        text = self._memory.read(address, min(length, _TEXT_LIMIT)).decode("utf-8", "backslashreplace")
        return Value(quoted(text) + ("…" if length > _TEXT_LIMIT else ""))

    def _array(self, inner: str, words: Sequence[int]) -> Value:
        """An array of elements of the C++ type ``inner``; ``words`` begins with its address and its length."""
        address, length = words[0], words[1]
        if length > _LONGEST:
            raise BadData(f"a list claims {length} elements")
        size = self._size(inner)
        elements = [self.stored(inner, address + size * index) for index in range(min(length, LIST_LIMIT))]
        return list_value(elements, length)

    def _size(self, kind: str) -> int:
        """``sizeof`` of a C++ type that arrays have as elements. Raises BadData for an unknown one."""
        if kind == structures.Scalar.OF:
            return structures.Scalar.size(self._space)
        if kind.startswith(_STRINGS):
            return string_reader(self._memory, self._layout).size
        optional = _OPTIONAL.match(kind)
        if optional and has_destructor(optional.group(1)):
            return self._size(optional.group(1)) + 8
        if kind.startswith(_VECTOR):
            return 24
        if kind == "double" or has_destructor(kind) or kind in _SCALAR_BYTES:
            return _SCALAR_BYTES.get(kind, 8)
        raise BadData(f"the size of type {kind} is unknown")

    def _list(self, implementation: int) -> Value:
        """A c10::List (a vector of IValues) by the address of its ListImpl."""
        size, items = self.ivalue_size, structures.ListImpl(self._space, implementation)
        first, count = vector_span(self._memory, items.list, size, _LONGEST)
        return list_value([self.boxed(first + size * index) for index in range(min(count, LIST_LIMIT))], count)

    def stored(self, kind: str, address: int) -> Value:
        """The object of the C++ type ``kind`` at ``address``."""
        optional = _OPTIONAL.match(kind)
        if optional:
            shape = self._shape(optional.group(1))
            if not _boolean(self._memory.u8(address + shape.engaged)):
                return Value("None")
            return self.stored(optional.group(1), address + shape.value)
        if kind == "at::Tensor":
            return self.tensor(self._memory.u64(address))
        if kind == "c10::Scalar":
            return self._scalar(address)
        if kind.startswith(_STRINGS):
            return self._text(address)
        if kind.startswith(_VECTOR):
            inner = kind[len(_VECTOR) :].partition(", std::allocator<")[0]
            return self._array(inner, vector_span(self._memory, address, self._size(inner), _LONGEST))
        if kind.startswith("c10::List<"):
            return self._list(self._memory.u64(address))
        if kind.startswith("c10::IListRef<"):  # an ArrayRef, or the address of a List
            reference = structures.ListReference(self._space, address)
            tag = self._names("c10::IListRefTag").get(reference.tag_)
            words = self._memory.words(reference.payload_, 2)
            if tag == "Unboxed":
                return self._array("at::Tensor", words)
            if tag == "Boxed":
                return self._list(self._memory.u64(words[0]))
            raise BadData(f"a list of tensors has the tag {tag}")
        if kind == "c10::SymInt":
            return self.symint(self._memory.i64(address))
        if kind == "at::Generator":
            return Value("a generator")
        return self._word(kind, int.from_bytes(self._memory.read(address, 8), "little"))

    @memoized
    def _names(self, enum: str) -> dict[int, str]:
        """Value → name of the enumerators of the C++ enumeration ``enum``."""
        return {number: name for name, number in self._layout.enum(enum).items()}

    def tensor(self, implementation: int) -> Value:
        """A tensor by its TensorImpl."""
        return Value(self._tensor_text(implementation), (implementation,), proven=True)

    @staticmethod
    def symint(number: int) -> Value:
        """A c10::SymInt by its signed number. From -2**62 - 1 down it is a pointer to a SymNodeImpl
        (c10/core/SymInt.h)."""
        return Value("a symbolic number" if number < -(1 << 62) else str(number))

    def _scalar(self, address: int) -> Value:
        """The c10::Scalar at an address."""
        scalar = structures.Scalar(self._space, address)
        tag = self._names("c10::Scalar::Tag").get(scalar.tag)
        raw = self._memory.read(scalar.v, 16)
        number = int.from_bytes(raw[:8], "little")
        if tag == "HAS_d":
            return Value(repr(struct.unpack_from("<d", raw)[0]))
        if tag == "HAS_i":
            return Value(str(_signed(number, 8)))
        if tag == "HAS_u":
            return Value(str(number))
        if tag == "HAS_b":
            return Value(str(_boolean(number)))
        if tag == "HAS_z":
            return Value(repr(complex(*struct.unpack("<2d", raw))))
        if not tag:
            raise BadData(f"there is no Scalar at {address:#x}")
        return Value("a symbolic number")

    def of_schema_type(self, kind: str, value: Value) -> Value:
        """``value`` as text of the schema type ``kind``: boxed dtypes, layouts and memory formats are numbers, which
        get the enumerator's name."""
        enumeration = f"c10::{kind.rstrip('?')}"
        enumerator = number(value.text) if enumeration in _ENUMS else None
        if enumerator is None:
            return value
        try:
            return value._replace(text=self._enumerator(enumeration, enumerator))
        except GdbextError:
            return value

    def tag(self, address: int) -> str:
        """The name of the IValue's tag: "Int", "None". Raises BadData, MemoryFault."""
        number = structures.IValue(self._space, address).tag
        tag = self._names("c10::IValue::Tag").get(number)
        if not tag:
            raise BadData(f"there is no IValue at {address:#x} (tag {number})")
        return tag

    def boxed(self, address: int) -> Value:
        """The value of the IValue at ``address``."""
        tag, payload = self.tag(address), structures.IValue(self._space, address).payload
        if tag == "Tensor":
            return self.tensor(self._memory.u64(payload))
        if tag == "GenericList":
            return self._list(self._memory.u64(payload))
        if tag == "None":
            return Value("None")
        if tag == "Bool":
            return Value(str(self._memory.u8(payload) != 0))
        if tag == "Double":
            return float_value("double", self._memory.u64(payload))
        if tag == "Device":
            return Value(self.device(self._memory.u16(payload)))
        if tag == "Int":
            return Value(str(self._memory.i64(payload)))
        if tag == "SymInt":
            return Value("a symbolic number")
        if tag == "String":
            return self._text(structures.ConstantString(self._space, self._memory.u64(payload)).str_)
        if tag == "ComplexDouble":
            raw = self._memory.read(structures.ComplexHolder(self._space, self._memory.u64(payload)).val, 16)
            return Value(repr(complex(*struct.unpack("<2d", raw))))
        return Value(f"a {tag}")

    def _text(self, address: int) -> Value:
        """The ``std::string`` at an address, cut if it is too long."""
        text = string_reader(self._memory, self._layout).read(address)
        return Value(quoted(text[:_TEXT_LIMIT]) + ("…" if len(text) > _TEXT_LIMIT else ""))


def list_value(values: Sequence[Value], count: int) -> Value:
    """The value of a list of ``count`` elements, the first of which are ``values``."""
    more = [f"… {count - len(values)} more"] if count > len(values) else []
    text = f"[{', '.join([*(value.text for value in values), *more])}]"
    if not any(value.tensors for value in values):
        return Value(text)
    return Value(text, tuple(tensor for value in values for tensor in value.tensors or (0,)), proven=True)


def _signed(value: int, size: int) -> int:
    """The signed number with the same ``size`` bytes as the unsigned ``value``."""
    return value - (1 << 8 * size) if value >> 8 * size - 1 else value


def _boolean(value: int) -> bool:
    """The bool in the low byte. Raises BadData if that is neither 0 nor 1."""
    if value & 255 > 1:
        raise BadData(f"a bool has the value {value}")
    return bool(value & 1)
