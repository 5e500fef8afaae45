"""Values of the C++ types that operators take, from the words in which they are passed.

Types are those of torchgen/api/cpp.py as the demangler writes them. Layouts: c10/core/Scalar.h, c10/util/ArrayRef.h,
OptionalArrayRef.h, ATen/core/List.h, IListRef.h, 2.13.0.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence

from gdbext.engine.arch.base import Architecture, Passing, Slot
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.layouts.layout import Layout
from gdbext.engine.process.memory import Memory
from gdbext.engine.record import Record, late_pattern
from gdbext.errors import BadData, GdbextError
from gdbext.torch.values import value_structures as structures
from gdbext.torch.values.containers import OptionalShape, has_own_optional, optional_shape, string_reader, vector_span
from gdbext.torch.values.value_text import device_text, python_name, quoted

LIST_LIMIT = 64
"""Elements of a list that are shown."""
_LONGEST = 1 << 16
_TEXT_LIMIT = 200
_MAX_UNREPRESENTABLE = -(1 << 62) - 1
"""c10/core/SymInt.h: a SymInt from here down is a pointer to a SymNodeImpl."""
_OPTIONAL = late_pattern(r"(?:std|c10)::optional<(.*?)\s*>$")
_ENUMS = {"c10::ScalarType": "c10::ScalarType", "c10::Layout": "c10::Layout", "c10::MemoryFormat": "c10::MemoryFormat"}
_PYTHON_NAMES = {
    "Contiguous": "contiguous_format", "Preserve": "preserve_format", "ChannelsLast": "channels_last",
    "ChannelsLast3d": "channels_last_3d", "Sparse": "sparse_coo", "SparseCsr": "sparse_csr", "Mkldnn": "_mkldnn",
    "SparseCsc": "sparse_csc", "SparseBsr": "sparse_bsr", "SparseBsc": "sparse_bsc",
}  # fmt: skip
"""Memory formats and layouts as Python has them (torch/csrc/utils/tensor_memoryformats.cpp, tensor_layouts.cpp), where
that is not the name in small letters."""
_STRING = "string_view<char"
_REFERENCES = ("at::Tensor", "c10::SymInt", "at::Generator", "c10::Storage", "at::Storage")
"""Classes with destructors, passed by the address of a copy."""
_WORDS = {"long": 8, "bool": 1, "signed char": 1, "c10::Device": 2, **dict.fromkeys(_ENUMS, 1)}
"""Types of one word, and how many of its bytes they use."""


FLOATS = ("double", "float")


class Value(Record):
    """``text`` as people read it, the tensors in it (0 for one that is not there). ``proven``: something about it can
    only be so if it is of this type."""

    text: str
    tensors: tuple[int, ...] = ()
    proven: bool = False


def passing_of(kind: str, own_optional: bool = False) -> Passing | None:
    """The way in which a parameter of that type is passed; None for a type that is not known.

    ``own_optional``: see ``optional.has_own_optional``.
    """
    if kind.endswith(("&", "*")) or kind in _REFERENCES or kind in _WORDS or kind.startswith("std::array<bool"):
        return Passing.WORD
    if kind in FLOATS:
        return Passing.FLOAT
    if kind.startswith("c10::ArrayRef<") or (_STRING in kind and "optional" not in kind):
        return Passing.TWO_WORDS
    found = _OPTIONAL.match(kind)
    if kind.startswith("c10::OptionalArrayRef<") or (found and found.group(1).startswith("c10::ArrayRef<")):
        return Passing.TWO_WORDS if own_optional else Passing.MEMORY
    return _optional_passing(found.group(1), own_optional) if found else None


def argument_slots(
    architecture: Architecture, layout: Layout, kinds: Sequence[str], leading: int
) -> list[tuple[Slot, ...]]:
    """The places of ``leading`` words and of parameters of those types behind them, up to the first type that is not
    known."""
    passings = [Passing.WORD] * leading
    for kind in kinds:
        passing = passing_of(kind, has_own_optional(layout))
        if passing is None:
            break
        passings.append(passing)
    return architecture.place_arguments(passings)


def _optional_passing(inner: str, own: bool) -> Passing | None:
    if inner in _REFERENCES:
        return Passing.WORD
    if inner == "double":
        return Passing.WORD_AND_FLOAT if own else Passing.FLOAT_AND_WORD
    if inner == "long":
        return Passing.TWO_WORDS
    if _STRING in inner:
        return Passing.MEMORY
    return Passing.WORD if inner in _WORDS else None


def floating(kind: str, word: int) -> Value:
    """A ``double`` or ``float`` in the low bytes of a word."""
    raw = word.to_bytes(8, "little")
    if kind == "double":
        return Value(repr(struct.unpack("<d", raw)[0]))
    return Value(f"{struct.unpack_from('<f', raw)[0]:.9g}")


def used_bytes(kind: str) -> int:
    """Number of low bytes of each of its words that a value of that type takes, at most."""
    if kind == "float":
        return 4
    found = _OPTIONAL.match(kind)
    if found is None:
        return _WORDS.get(kind, 8)
    size = _WORDS.get(found.group(1), 8)
    return min(size + 2, 8)  # the value, and whether it is there


class CppValues:
    """Reads values of one process. Raises BadData and MemoryFault for words that cannot be such a value."""

    def __init__(self, memory: Memory, layout: Layout, tensor: Callable[[int], str]) -> None:
        """``tensor``: the TensorImpl at an address in short form; it raises BadData where there is none."""
        self._memory = memory
        self._layout = layout
        self._tensor_text = tensor
        self._space = Space(memory, layout)
        self.ivalue_size = structures.IValue.size(self._space)
        self._dtypes = [python_name(name) for name, _size in layout.dispatch("scalar_types")]

    def read(self, kind: str, words: Sequence[int]) -> Value:
        """The parameter of type ``kind`` that is passed in these words."""
        plain = kind.removesuffix("&").removesuffix(" const").strip()
        if kind.endswith("&") or kind in _REFERENCES:
            return self.stored(plain, words[0])
        optional = _OPTIONAL.match(kind)
        if optional is not None:
            inner = optional.group(1)
            return self.stored(plain, words[0]) if inner in _REFERENCES else self._optional(inner, words)
        if kind.startswith("c10::OptionalArrayRef<"):
            return self._optional_array(kind[len("c10::OptionalArrayRef<") : -1], words)
        if kind.startswith("c10::ArrayRef<"):
            return self._array(kind[len("c10::ArrayRef<") : -1], words)
        if _STRING in kind:
            return self._string(*self._view(words))
        return self._word(kind, words[0])

    def slots(self, kinds: Sequence[str], leading: int) -> list[tuple[Slot, ...]]:
        """The places of ``leading`` words and of the parameters that this torch passes behind them."""
        return argument_slots(self._memory.architecture, self._layout, kinds, leading)

    # --- values in words -------------------------------------------------------------------------

    def _word(self, kind: str, word: int) -> Value:
        if kind in FLOATS:
            return floating(kind, word)
        if kind.startswith("std::array<bool"):
            count = int(re.sub(r"\D", "", kind.rpartition(",")[2]) or 0)
            return Value(f"[{', '.join(str(bool(word >> 8 * each & 1)) for each in range(count))}]")
        size = _WORDS.get(kind)
        if size is None:
            raise BadData(f"values of {kind} are not known")
        value = word & (1 << 8 * size) - 1
        if kind == "bool":
            return Value("True" if _boolean(value) else "False")
        if kind in _ENUMS:
            return Value(self._enumerator(kind, value))
        if kind == "c10::Device":
            return Value(self.device(value))
        return Value(str(_signed(value, size)))

    def dtype(self, number: int) -> str:
        """A c10::ScalarType, which is also what a caffe2::TypeMeta of an element type has. Raises BadData."""
        if number >= len(self._dtypes):
            raise BadData(f"there is no dtype {number}")
        return f"torch.{self._dtypes[number]}"

    def device(self, value: int) -> str:
        """A c10::Device by its two bytes. Raises BadData."""
        names = {number: name for name, number in self._layout.renamed_enum("c10::DeviceType").items()}
        if value & 255 not in names:
            raise BadData(f"there is no device type {value & 255}")
        return device_text(names, value & 255, value >> 8)

    def _enumerator(self, kind: str, value: int) -> str:
        if kind == "c10::ScalarType":
            return self.dtype(value)
        names = {number: name for name, number in self._layout.enum(_ENUMS[kind]).items()}
        if value not in names:
            raise BadData(f"there is no {kind} {value}")
        return f"torch.{_PYTHON_NAMES.get(names[value], names[value].lower())}"

    def _optional(self, inner: str, words: Sequence[int]) -> Value:
        """One that is passed in registers: the words are its bytes, in order."""
        if inner.startswith("c10::ArrayRef<"):
            return self._optional_array(inner[len("c10::ArrayRef<") : -1], words)
        raw = b"".join(word.to_bytes(8, "little") for word in words)
        shape = self._shape(structures.StringView.OF if _STRING in inner else inner)
        if not _boolean(raw[shape.engaged]):
            return Value("None")
        if _STRING in inner:
            return self._string(*self._view(words[shape.value // 8 :]))
        return self._word(inner, int.from_bytes(raw[shape.value : shape.value + 8], "little"))

    def _optional_array(self, inner: str, words: Sequence[int]) -> Value:
        if has_own_optional(self._layout):
            absent = words[0] == 0 and words[1] != 0
        else:
            absent = not words[2] & 1
        return Value("None") if absent else self._array(inner, words)

    def _shape(self, inner: str) -> OptionalShape:
        return optional_shape(self._layout, {"long": "int64_t"}.get(inner, inner))

    def _view(self, words: Sequence[int]) -> tuple[int, int]:
        """(address, length) of a string_view. c10's own, of torch before 2.6 (c10/util/string_view.h), has them in this
        order, libstdc++'s the other way round."""
        view = structures.StringView
        first = next((each for each in (view._M_str, view.begin_) if each.is_in(self._layout)), view.begin_)
        return (words[0], words[1]) if first.offset(self._space) == 0 else (words[1], words[0])

    def _string(self, address: int, length: int) -> Value:
        if length > _LONGEST:
            raise BadData(f"a string of {length} bytes")
        text = self._memory.read(address, min(length, _TEXT_LIMIT)).decode("utf-8", "backslashreplace")
        return Value(quoted(text) + ("…" if length > _TEXT_LIMIT else ""))

    # --- lists -----------------------------------------------------------------------------------

    def _array(self, inner: str, words: Sequence[int]) -> Value:
        address, length = words[0], words[1]
        if length > _LONGEST:
            raise BadData(f"a list of {length} elements")
        size = structures.Scalar.size(self._space) if inner == structures.Scalar.OF else 1 if inner == "bool" else 8
        return _joined([self.stored(inner, address + size * each) for each in range(min(length, LIST_LIMIT))], length)

    def _list(self, implementation: int) -> Value:
        """A c10::List: a vector of IValues."""
        size, items = self.ivalue_size, structures.ListImpl(self._space, implementation)
        first, count = vector_span(self._memory, items.list, size, _LONGEST)
        return _joined([self.boxed(first + size * each) for each in range(min(count, LIST_LIMIT))], count)

    def _tensor_list_reference(self, address: int) -> Value:
        """An IListRef<at::Tensor>: an ArrayRef, or the address of a List."""
        found = structures.ListReference(self._space, address)
        tags = {number: name for name, number in self._layout.enum("c10::IListRefTag").items()}
        tag = tags.get(found.tag_)
        words = self._memory.words(found.payload_, 2)
        if tag == "Unboxed":
            return self._array("at::Tensor", words)
        if tag == "Boxed":
            return self._list(self._memory.u64(words[0]))
        raise BadData(f"a list of tensors that is {tag}")

    # --- values in memory ------------------------------------------------------------------------

    def stored(self, kind: str, address: int) -> Value:
        """The object of type ``kind`` at ``address``."""
        optional = _OPTIONAL.match(kind)
        if optional is not None:
            shape = self._shape(optional.group(1))
            if not _boolean(self._memory.u8(address + shape.engaged)):
                return Value("None")
            return self.stored(optional.group(1), address + shape.value)
        if kind == "at::Tensor":
            return self.tensor(self._memory.u64(address))
        if kind == "c10::Scalar":
            return self._scalar(address)
        if kind.startswith("c10::List<"):
            return self._list(self._memory.u64(address))
        if kind.startswith("c10::IListRef<"):
            return self._tensor_list_reference(address)
        if kind == "c10::SymInt":
            return self.symint(self._memory.i64(address))
        if kind == "at::Generator":
            return Value("a generator")
        if kind == "double":
            return Value(repr(struct.unpack("<d", self._memory.read(address, 8))[0]))
        return self._word(kind, int.from_bytes(self._memory.read(address, 8), "little"))

    def tensor(self, implementation: int) -> Value:
        """A tensor by its TensorImpl."""
        text = self._tensor_text(implementation)
        return Value(text, (implementation,), True)

    @staticmethod
    def symint(number: int) -> Value:
        """A c10::SymInt by its signed number."""
        return Value("a symbolic number" if number <= _MAX_UNREPRESENTABLE else str(number))

    def _scalar(self, address: int) -> Value:
        scalar = structures.Scalar(self._space, address)
        tags = {number: name for name, number in self._layout.enum("c10::Scalar::Tag").items()}
        tag = tags.get(scalar.tag)
        raw = self._memory.read(scalar.v, 16)
        number = int.from_bytes(raw[:8], "little")
        if tag == "HAS_d":
            return Value(repr(struct.unpack_from("<d", raw)[0]))
        if tag == "HAS_i":
            return Value(str(_signed(number, 8)))
        if tag == "HAS_u":
            return Value(str(number))
        if tag == "HAS_b":
            return Value("True" if _boolean(number) else "False")
        if tag == "HAS_z":
            return Value(repr(complex(*struct.unpack("<2d", raw))))
        if tag is None:
            raise BadData(f"there is no Scalar at {address:#x}")
        return Value("a symbolic number")

    def of_schema_type(self, kind: str, value: Value) -> Value:
        """The value as one of that type of the schema: an IValue has types of data and their like as numbers."""
        enumeration = f"c10::{kind.rstrip('?')}"
        if enumeration not in _ENUMS or not value.text.isdigit():
            return value
        try:
            return value._replace(text=self._enumerator(enumeration, int(value.text)))
        except GdbextError:
            return value

    # --- IValues ---------------------------------------------------------------------------------

    def boxed(self, address: int) -> Value:
        """The value of the IValue at ``address``."""
        value = structures.IValue(self._space, address)
        tags = {number: name for name, number in self._layout.enum("c10::IValue::Tag").items()}
        tag, payload = tags.get(value.tag), value.payload
        if tag is None:
            raise BadData(f"there is no IValue at {address:#x}")
        if tag == "Tensor":
            return self.tensor(self._memory.u64(payload))
        if tag == "GenericList":
            return self._list(self._memory.u64(payload))
        if tag in ("None", "Int", "Bool", "Double", "Device", "SymInt"):
            return self._simple(tag, payload)
        if tag == "String":
            text = structures.ConstantString(self._space, self._memory.u64(payload))
            return Value(quoted(string_reader(self._memory, self._layout).read(text.str_)))
        if tag == "ComplexDouble":
            raw = self._memory.read(structures.ComplexHolder(self._space, self._memory.u64(payload)).val, 16)
            return Value(repr(complex(*struct.unpack("<2d", raw))))
        return Value(f"a {tag}")

    def _simple(self, tag: str, payload: int) -> Value:
        if tag == "None":
            return Value("None")
        if tag == "Bool":
            return Value("True" if self._memory.u8(payload) else "False")
        if tag == "Double":
            return Value(repr(struct.unpack("<d", self._memory.read(payload, 8))[0]))
        if tag == "Device":
            return Value(self.device(self._memory.u16(payload)))
        return Value(str(self._memory.i64(payload))) if tag == "Int" else Value("a symbolic number")


def _joined(values: Sequence[Value], count: int) -> Value:
    texts = [value.text for value in values]
    more = [f"… {count - len(values)} more"] if count > len(values) else []
    text = f"[{', '.join([*texts, *more])}]"
    if not any(value.tensors for value in values):
        return Value(text)
    return Value(text, tuple(tensor for value in values for tensor in value.tensors or (0,)), True)


def _signed(value: int, size: int) -> int:
    return value - (1 << 8 * size) if value >> 8 * size - 1 else value


def _boolean(value: int) -> bool:
    if value & 255 > 1:
        raise BadData(f"a bool of value {value}")
    return bool(value & 1)
