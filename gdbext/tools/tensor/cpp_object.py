"""C++ objects as a debugger hands them over, which types of PyTorch have a summary, and the summaries of boxed values.

Debuggers ask for every value that they show, so this imports little. Layouts: ATen/core/ivalue.h, ivalue_inl.h, List.h,
Dict.h, c10/util/order_preserving_flat_hash_map.h, 2.13.0.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.layouts.declarations import Space
from gdbext.engine.vocabulary import counted
from gdbext.errors import BadData, GdbextError
from gdbext.torch.values import value_structures as structures
from gdbext.torch.values.containers import vector_span

if TYPE_CHECKING:
    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.memory import Memory
    from gdbext.torch.values.cpp_values import CppValues


class CppObject(NamedTuple):
    """A C++ object. ``type`` is the qualified name without typedefs, ``const`` and ``&``."""

    type: str
    address: int
    """0 for an object in registers, which has its bytes (``raw``) instead."""
    raw: bytes = b""
    element: str = ""
    """The type's first template argument; "" if there is none or the debugger does not know it."""
    element_size: int = 0
    """The ``sizeof`` of an element."""

    def number(self, memory: Memory, offset: int, size: int) -> int:
        """The unsigned integer of ``size`` bytes at ``offset``. Raises MemoryFault, BadData."""
        return int.from_bytes(self.bytes(memory, size, offset), "little")

    def bytes(self, memory: Memory, size: int, offset: int = 0) -> bytes:
        """Its ``size`` bytes from ``offset`` on. Raises MemoryFault, BadData if it has less."""
        if self.address:
            return memory.read(self.address + offset, size)
        if len(self.raw) < offset + size:
            raise BadData("it is not in memory")
        return self.raw[offset : offset + size]

    def memory_address(self) -> int:
        """Its address. Raises BadData if it has none."""
        if not self.address:
            raise BadData("it is not in memory")
        return self.address


class SummarizedType(NamedTuple):
    """A C++ type that debuggers show with a summary: its qualified name, without template arguments."""

    name: str
    is_template: bool = False
    has_children: bool = False
    """It can be expanded to show its parts."""


_TENSORS = (
    "c10::TensorImpl c10::UndefinedTensorImpl at::SparseTensorImpl at::SparseCsrTensorImpl at::QTensorImpl "
    "at::FunctionalTensorWrapper at::native::NestedTensorImpl at::functorch::BatchedTensorImpl "
    "at::functorch::TensorWrapper"
)
TENSOR_CLASSES = frozenset(_TENSORS.split())
"""c10::TensorImpl and the classes derived from it."""
_WITHOUT_CHILDREN = (
    "c10::DispatchKeySet c10::DispatchKey c10::OperatorName c10::FunctionSchema c10::Storage c10::StorageImpl "
    "c10::Scalar c10::Device c10::ScalarType caffe2::TypeMeta c10::SymInt"
)
_WITH_CHILDREN = "c10::OperatorHandle c10::KernelFunction at::Tensor at::TensorBase c10::IValue"
_TEMPLATES = (
    "c10::TypedOperatorHandle c10::ArrayRef c10::intrusive_ptr c10::SmallVector c10::SmallVectorImpl c10::Dict "
    "c10::List"
)
SUMMARIZED_TYPES = (
    *map(SummarizedType, _WITHOUT_CHILDREN.split()),
    *(SummarizedType(name, has_children=True) for name in (*_WITH_CHILDREN.split(), *_TENSORS.split())),
    *(SummarizedType(name, is_template=True, has_children=True) for name in _TEMPLATES.split()),
)
_BY_NAME = {summarized.name: summarized for summarized in SUMMARIZED_TYPES}


def summarized_type(name: str) -> SummarizedType | None:
    """The type of that name (without typedefs and qualifiers); None for one without a summary."""
    base, bracket, _ = name.partition("<")
    summarized = _BY_NAME.get(base)
    return summarized if summarized and summarized.is_template == bool(bracket) else None


class Child(NamedTuple):
    """A part of an object. If ``type`` and ``address`` are given and the debugger knows that type, it shows the object
    there in its own way, else ``text``.
    """

    name: str
    text: str
    type: str = ""
    address: int = 0


class TypeSummary(NamedTuple):
    """A C++ object in one line (``text``), and its parts."""

    text: str
    children: tuple[Child, ...] = ()
    shape: str = ""
    """Either "array" (the children are elements), "map" (they are keys and values in turn) or empty."""


ELEMENT_LIMIT = 200
"""Elements that are shown of a container."""
LONGEST = 1 << 32
"""Elements of a container, at most: more are damage."""


class BoxedValues:
    """Summarizes boxed values (c10::IValue) and their containers. Raises BadData, MemoryFault, LayoutError.

    At most ``limit`` elements of a container become children.
    """

    def __init__(self, memory: Memory, layout: Layout, values: CppValues) -> None:
        self._memory = memory
        self._values = values
        self._space = Space(memory, layout)
        self._size = structures.IValue.size(self._space)
        self._tags = {number: name for name, number in layout.enum("c10::IValue::Tag").items()}

    def of_value(self, address: int, limit: int = ELEMENT_LIMIT) -> TypeSummary:
        """The IValue at ``address``: its tag and its value."""
        value = structures.IValue(self._space, address)
        tag = self._tags.get(value.tag)
        if not tag:
            raise BadData(f"there is no IValue at {address:#x}")
        if tag in ("None", "Uninitialized"):
            return TypeSummary(tag)
        if tag in ("Tensor", "Double", "Int", "Bool", "String", "Device"):
            return TypeSummary(f"{tag} {self._values.boxed(address).text}")
        word = self._memory.u64(value.payload)
        containers = {"GenericList": self.of_list, "GenericDict": self.of_dict, "Tuple": self._tuple}
        if tag in containers:
            summary = containers[tag](word, limit)
            return summary._replace(text=f"{tag} of {summary.text}")
        if tag == "UInt":
            return TypeSummary(f"UInt {word}")
        if tag == "ComplexDouble":
            holder = structures.ComplexHolder(self._space, word)
            parts = struct.unpack("<2d", self._memory.read(holder.val, 16))
            return TypeSummary(f"ComplexDouble {complex(*parts)!r}")
        return TypeSummary(f"{tag} at {word:#x}")

    def of_list(self, address: int, limit: int = ELEMENT_LIMIT) -> TypeSummary:
        """The elements of the c10::detail::ListImpl at ``address``."""
        items = structures.ListImpl(self._space, address).list
        return self._sequence(*vector_span(self._memory, items, self._size, LONGEST), limit)

    def _tuple(self, address: int, limit: int) -> TypeSummary:
        """The elements of the c10::ivalue::Tuple at ``address``: up to three are stored inline (ATen/core/ivalue.h),
        more in a std::vector."""
        elements = structures.BoxedTuple(self._space, address).elements_
        inline = elements.inlineSize_
        if inline > 3:
            raise BadData(f"a tuple with {inline} inline values")
        if inline:
            return self._sequence(elements.elementsInline_, inline, limit)
        return self._sequence(*vector_span(self._memory, elements.elementsVector_, self._size, LONGEST), limit)

    def _sequence(self, first: int, count: int, limit: int) -> TypeSummary:
        """The ``count`` IValues that are stored one after the other, beginning at the address ``first``."""
        children = tuple(self._child(f"[{index}]", first + self._size * index) for index in range(min(count, limit)))
        return TypeSummary(count_text(count, min(count, ELEMENT_LIMIT)), children, "array")

    def of_dict(self, address: int, limit: int = ELEMENT_LIMIT) -> TypeSummary:
        """The entries of the c10::detail::DictImpl at ``address``, in the order in which they were inserted."""
        table = structures.DictImpl(self._space, address).dict
        count = table.num_elements
        if count > LONGEST:
            raise BadData(f"a dict of {count} elements")
        children: list[Child] = []
        end = entry = structures.DictEntry(self._space, table.sentinel)
        for number in range(min(count, limit)):
            following = structures.DictEntry(self._space, entry.next)
            if following.address == end.address or following.prev != entry.address:
                raise BadData("the dict's entries do not point at each other")
            entry = following
            children.append(self._child(f"[{number}].key", entry.pair))
            children.append(self._child(f"[{number}].value", entry.pair + self._size))
        return TypeSummary(count_text(count, min(count, ELEMENT_LIMIT)), tuple(children), "map")

    def _child(self, name: str, address: int) -> Child:
        """A child that is the IValue at ``address``; its text is the reason if it cannot be read."""
        try:
            text = self.of_value(address, 0).text
        except GdbextError as error:
            text = f"<{error.what}>"
        return Child(name, text, "c10::IValue", address)


def count_text(count: int, shown: int) -> str:
    """``3 elements``; ``300 elements, the first 200 shown``."""
    return counted(count, "element") + (f", the first {shown} shown" if shown < count else "")
