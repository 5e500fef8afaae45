"""A C++ object as a debugger hands it over: its type's name and where it is, or its bytes where it is in registers.

Which C++ types of PyTorch have a summary. Debuggers ask for every value that they show, so this imports little.

TypeSummary: a C++ object in one line, and the parts of it that are worth showing.

IValues, Lists and Dicts as debuggers show them.

Layouts: ATen/core/ivalue.h, ivalue_inl.h, List.h, Dict.h, c10/util/order_preserving_flat_hash_map.h, 2.13.0.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.layouts.declarations import Space
from gdbext.errors import BadData, GdbextError
from gdbext.torch.values import value_structures as structures
from gdbext.torch.values.containers import vector_span

if TYPE_CHECKING:
    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.memory import Memory
    from gdbext.torch.values.cpp_values import CppValues
    from gdbext.torch.values.value_structures import DictEntry, DictTable


class CppObject(NamedTuple):
    """``type`` is the qualified name without typedefs, ``const`` and ``&``."""

    type: str
    address: int
    """0 where it is not in memory."""
    raw: bytes = b""
    """Its bytes, where it is not in memory."""
    element: str = ""
    """The type's first template argument; "" where there is none or the debugger does not know it."""
    element_size: int = 0
    """The ``sizeof`` of an element."""

    def number(self, memory: Memory, offset: int, size: int) -> int:
        """An unsigned integer in it. Raises MemoryFault, BadData."""
        if self.address:
            return int.from_bytes(memory.read(self.address + offset, size), "little")
        return int.from_bytes(self.bytes(memory, offset + size)[offset:], "little")

    def bytes(self, memory: Memory, size: int) -> bytes:
        """Its first ``size`` bytes. Raises MemoryFault, BadData where it has less."""
        if self.address:
            return memory.read(self.address, size)
        if len(self.raw) < size:
            raise BadData("it is not in memory")
        return self.raw[:size]

    def place(self) -> int:
        """Its address. Raises BadData where it has none."""
        if not self.address:
            raise BadData("it is not in memory")
        return self.address


class SummarizedType(NamedTuple):
    """A C++ class or enumeration by its qualified name; of a template, the name without arguments."""

    name: str
    is_template: bool = False
    has_children: bool = False
    """Something is shown inside of it, besides the summary."""


_TENSOR_CLASSES = (
    "c10::TensorImpl",
    "c10::UndefinedTensorImpl",
    "at::SparseTensorImpl",
    "at::SparseCsrTensorImpl",
    "at::QTensorImpl",
    "at::FunctionalTensorWrapper",
    "at::native::NestedTensorImpl",
    "at::functorch::BatchedTensorImpl",
    "at::functorch::TensorWrapper",
)

SUMMARIZED_TYPES = (
    SummarizedType("c10::DispatchKeySet"),
    SummarizedType("c10::DispatchKey"),
    SummarizedType("c10::OperatorName"),
    SummarizedType("c10::OperatorHandle", has_children=True),
    SummarizedType("c10::TypedOperatorHandle", is_template=True, has_children=True),
    SummarizedType("c10::KernelFunction", has_children=True),
    SummarizedType("c10::FunctionSchema"),
    SummarizedType("at::Tensor", has_children=True),
    SummarizedType("at::TensorBase", has_children=True),
    *(SummarizedType(name, has_children=True) for name in _TENSOR_CLASSES),
    SummarizedType("c10::Storage"),
    SummarizedType("c10::StorageImpl"),
    SummarizedType("c10::Scalar"),
    SummarizedType("c10::IValue", has_children=True),
    SummarizedType("c10::Device"),
    SummarizedType("c10::ScalarType"),
    SummarizedType("caffe2::TypeMeta"),
    SummarizedType("c10::SymInt"),
    SummarizedType("c10::ArrayRef", is_template=True, has_children=True),
    SummarizedType("c10::intrusive_ptr", is_template=True, has_children=True),
    SummarizedType("c10::SmallVector", is_template=True, has_children=True),
    SummarizedType("c10::SmallVectorImpl", is_template=True, has_children=True),
    SummarizedType("c10::Dict", is_template=True, has_children=True),
    SummarizedType("c10::List", is_template=True, has_children=True),
)

_BY_NAME = {each.name: each for each in SUMMARIZED_TYPES}
TENSOR_CLASSES = frozenset(_TENSOR_CLASSES)
"""c10::TensorImpl and the classes derived from it."""


def summarized_type(name: str) -> SummarizedType | None:
    """The type that a debugger calls ``name``, typedefs and qualifiers taken away; None for one without a summary."""
    base, bracket, _ = name.partition("<")
    found = _BY_NAME.get(base)
    return found if found and found.is_template == bool(bracket) else None


class Child(NamedTuple):
    """One part. Where ``type`` and ``address`` are given and the debugger knows that type, it shows the object there
    in its own way, else ``text``."""

    name: str
    text: str
    type: str = ""
    address: int = 0


class TypeSummary(NamedTuple):
    """``shape`` is "array" or "map" (children are keys and values in turn) where the children are elements, else ""."""

    text: str
    children: tuple[Child, ...] = ()
    shape: str = ""


ELEMENT_LIMIT = 200
_LONGEST = 1 << 32
_IVALUE = "c10::IValue"
_INLINE_TUPLE = 3
"""TupleElements keeps up to three values in itself (ATen/core/ivalue.h)."""
_PLAIN = ("Tensor", "Double", "Int", "Bool", "String", "Device")
"""Tags whose values CppValues reads."""


class BoxedValues:
    """Summarises boxed values. Raises BadData, MemoryFault, LayoutError."""

    def __init__(self, memory: Memory, layout: Layout, values: CppValues) -> None:
        self._memory = memory
        self._values = values
        self._space = Space(memory, layout)
        self._size = structures.IValue.size(self._space)
        self._tags = {number: name for name, number in layout.enum("c10::IValue::Tag").items()}

    def of_value(self, address: int, limit: int = ELEMENT_LIMIT) -> TypeSummary:
        """The IValue there: its tag and its value; at most ``limit`` elements of a container are children."""
        value = structures.IValue(self._space, address)
        tag = self._tags.get(value.tag)
        if not tag:
            raise BadData(f"there is no IValue at {address:#x}")
        if tag in ("None", "Uninitialized"):
            return TypeSummary(tag)
        payload = value.payload
        if tag in _PLAIN:
            return TypeSummary(f"{tag} {self._values.boxed(address).text}")
        if tag in ("GenericList", "GenericDict", "Tuple"):
            found = {"GenericList": self.of_list, "GenericDict": self.of_dict, "Tuple": self._tuple}[tag](
                self._memory.u64(payload), limit
            )
            return found._replace(text=f"{tag} of {found.text}")
        return TypeSummary(self._other(tag, payload))

    def _other(self, tag: str, payload: int) -> str:
        if tag == "UInt":
            return f"UInt {self._memory.u64(payload)}"
        if tag == "ComplexDouble":
            held = structures.ComplexHolder(self._space, self._memory.u64(payload))
            parts = struct.unpack("<2d", self._memory.read(held.val, 16))
            return f"ComplexDouble {complex(*parts)!r}"
        return f"{tag} at {self._memory.u64(payload):#x}"

    # --- containers ------------------------------------------------------------------------------

    def of_list(self, implementation: int, limit: int = ELEMENT_LIMIT) -> TypeSummary:
        """The elements of the c10::detail::ListImpl at an address."""
        items = structures.ListImpl(self._space, implementation).list
        return self._sequence(*vector_span(self._memory, items, self._size, _LONGEST), limit)

    def _tuple(self, implementation: int, limit: int) -> TypeSummary:
        """The elements of the c10::ivalue::Tuple at an address."""
        elements = structures.BoxedTuple(self._space, implementation).elements_
        inline = elements.inlineSize_
        if inline > _INLINE_TUPLE:
            raise BadData(f"a tuple with {inline} values in itself")
        if inline:
            return self._sequence(elements.elementsInline_, inline, limit)
        return self._sequence(*vector_span(self._memory, elements.elementsVector_, self._size, _LONGEST), limit)

    def _sequence(self, first: int, count: int, limit: int) -> TypeSummary:
        size, shown = self._size, min(count, limit)
        children = tuple(self._child(f"[{each}]", first + size * each) for each in range(shown))
        return TypeSummary(count_text(count, min(count, ELEMENT_LIMIT)), children, "array")

    def of_dict(self, implementation: int, limit: int = ELEMENT_LIMIT) -> TypeSummary:
        """The c10::detail::DictImpl there: its entries in the order in which they were inserted."""
        entries, count = self._entries(structures.DictImpl(self._space, implementation).dict, limit)
        children: list[Child] = []
        for number, entry in enumerate(entries):
            children.append(self._child(f"[{number}].key", entry.pair))
            children.append(self._child(f"[{number}].value", entry.pair + self._size))
        return TypeSummary(count_text(count, min(count, ELEMENT_LIMIT)), tuple(children), "map")

    def _entries(self, table: DictTable, limit: int) -> tuple[list[DictEntry], int]:
        """The first entries, and how many there are. Every link is checked both ways."""
        count = table.num_elements
        if count > _LONGEST:
            raise BadData(f"a dict of {count} elements")
        found: list[DictEntry] = []
        end = at = structures.DictEntry(self._space, table.sentinel)
        for _ in range(min(count, limit)):
            following = structures.DictEntry(self._space, at.next)
            if following.address == end.address or following.prev != at.address:
                raise BadData("the dict's entries do not point at each other")
            found.append(following)
            at = following
        return found, count

    def _child(self, name: str, address: int) -> Child:
        try:
            text = self.of_value(address, 0).text
        except GdbextError as error:
            text = f"<{error.what}>"
        return Child(name, text, _IVALUE, address)


def count_text(count: int, shown: int) -> str:
    """``3 elements``; says how many are shown where that is not all."""
    more = f", the first {shown} shown" if shown < count else ""
    return f"{count} element{'' if count == 1 else 's'}{more}"
