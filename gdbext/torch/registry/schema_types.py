"""Types of schemas as text: ``Type::str()`` of torch::jit (jit_type.h, type.cpp), 2.13.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.engine.layouts.declarations import Space
from gdbext.errors import BadData
from gdbext.torch.values import value_structures as structures
from gdbext.torch.values.containers import StringReader, optional_shape, vector_span

if TYPE_CHECKING:
    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.memory import Memory

DEPTH_LIMIT = 32
MEMBER_LIMIT = 1024

_SIMPLE = {
    "AnyType": "Any",
    "AnyEnumType": "AnyEnumType",
    "TensorType": "Tensor",
    "StorageType": "Storage",
    "NumberType": "Scalar",
    "FloatType": "float",
    "ComplexType": "complex",
    "IntType": "int",
    "NoneType": "NoneType",
    "StringType": "str",
    "GeneratorType": "Generator",
    "QuantizerType": "Quantizer",
    "BoolType": "bool",
    "DeviceObjType": "Device",
    "StreamObjType": "Stream",
    "PyObjectType": "PyObject",
    "CapsuleType": "Capsule",
    "QSchemeType": "QScheme",
    "ScalarTypeType": "ScalarType",
    "LayoutType": "Layout",
    "MemoryFormatType": "MemoryFormat",
    "AnyListType": "list",
    "AnyTupleType": "tuple",
    "AnyClassType": "AnyClassType",
    "SymIntType": "SymInt",
    "SymFloatType": "SymFloat",
    "SymBoolType": "SymBool",
}
"""Singletons: the text is in the class (``str()``, or ``annotation_str`` where ``str()`` calls that)."""

_ELEMENT = {
    "ListType": (structures.ListType.elem, "{}[]"),
    "OptionalType": (structures.OptionalType.contained_, "{}?"),
    "FutureType": (structures.FutureType.elem, "Future({})"),
    "AwaitType": (structures.FutureType.elem, "Await({})"),
    "RRefType": (structures.RRefType.elem, "RRef({})"),
}
"""Types around one other: the member that has it, and the text. AwaitType and FutureType share SingleElementType."""

_POINTER_SIZE = 16
"""``c10::TypePtr`` and ``shared_ptr<Type>``: the pointer is the first word of both."""


class TypeReader:
    """Prints types. Raises LayoutError at construction when the layout does not know their kinds."""

    def __init__(self, memory: Memory, layout: Layout, strings: StringReader) -> None:
        self._memory = memory
        self._strings = strings
        self._layout = layout
        self._space = Space(memory, layout)
        self._kind_at = structures.Type.kind_.offset(self._space)
        self._kinds = {value: name for name, value in layout.enum("c10::TypeKind").items()}
        self._texts: dict[int, str] = {}

    def kind(self, address: int) -> str:
        """The name of the type's ``TypeKind``: "TensorType". Raises BadData, MemoryFault."""
        value = self._memory.u32(address + self._kind_at)
        kind = self._kinds.get(value)
        if not kind:
            raise BadData(f"there is no type at {address:#x} (kind {value})")
        return kind

    def element(self, address: int) -> int:
        """The type inside a list, an optional, a future, … Raises BadData (it has none), LayoutError, MemoryFault."""
        kind = self.kind(address)
        if kind not in _ELEMENT:
            raise BadData(f"the {kind} at {address:#x} has no element type")
        member, _ = _ELEMENT[kind]
        return member.read(self._space, address + member.offset(self._space))

    def text(self, address: int, depth: int = 0) -> str:
        """The type as PyTorch writes it in a schema. Raises BadData (it cannot be shown), LayoutError, MemoryFault."""
        if address not in self._texts:
            self._texts[address] = self._read(address, depth)
        return self._texts[address]

    def _read(self, address: int, depth: int) -> str:
        if depth > DEPTH_LIMIT:
            raise BadData(f"the type at {address:#x} is nested deeper than {DEPTH_LIMIT} levels")
        kind = self.kind(address)
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        if kind in _ELEMENT:
            return _ELEMENT[kind][1].format(self.text(self.element(address), depth + 1))
        if kind == "DictType":
            return f"Dict({self._joined(structures.DictType(self._space, address).types, depth)})"
        if kind == "TupleType":
            return self._tuple_text(address, depth)
        if kind == "UnionType":
            return f"Union[{self._joined(structures.UnionType(self._space, address).types_, depth)}]"
        if kind == "VarType":
            return self._strings.read(structures.VarType(self._space, address).name_, 256)
        if kind in ("ClassType", "InterfaceType"):
            optional = structures.NamedType(self._space, address).name_
            held = optional + optional_shape(self._layout, structures.QualifiedName.OF).value
            name = self._strings.read(structures.QualifiedName(self._space, held).qualifiedName_, 4096)
            return name if kind == "ClassType" else f"InterfaceType<{name.rpartition('.')[2]}>"
        raise BadData(f"the type at {address:#x} is a {kind}, which is not shown")

    def _tuple_text(self, address: int, depth: int) -> str:
        """``(A, B)``. A named tuple has a schema and prints differently; it does not occur in operators."""
        found = structures.TupleType(self._space, address)
        if found.schema_:
            raise BadData(f"the type at {address:#x} is a named tuple, which is not shown")
        return f"({self._joined(found.elements_, depth)})"

    def _joined(self, vector: int, depth: int) -> str:
        first, count = vector_span(self._memory, vector, _POINTER_SIZE, MEMBER_LIMIT)
        members = (self._memory.u64(first + index * _POINTER_SIZE) for index in range(count))
        return ", ".join(self.text(member, depth + 1) for member in members)
