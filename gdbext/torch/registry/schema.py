"""FunctionSchemas and their types as PyTorch prints them, and the arguments and results in such a text.

Formats: operator<< of FunctionSchema (ATen/core/function_schema.cpp), Argument (function_schema.h), AliasInfo
(alias_info.h) and IValue (ivalue.cpp), ``Type::str()`` of torch::jit (jit_type.h, type.cpp), 2.13.0. C++ functions
return results as torchgen/api/cpp.py says.
"""

from __future__ import annotations

import re
from functools import cached_property
from struct import unpack
from typing import NamedTuple

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData, LayoutError, MemoryFault
from gdbext.torch.assumed_symbols import INTERNED_STRINGS
from gdbext.torch.memoized import memoized
from gdbext.torch.values import value_structures as structures
from gdbext.torch.values.containers import StringReader, optional_shape, vector_span
from gdbext.torch.values.cpp_values import CppValues
from gdbext.torch.values.value_text import double_text, quoted

_ALIAS_LIMIT = 256
_UNKNOWN = "?"

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


class TypeReader:
    """Reads ``c10::Type`` objects as text. Raises LayoutError at construction if the layout does not know their
    kinds."""

    def __init__(self, memory: Memory, layout: Layout, strings: StringReader) -> None:
        self._memory = memory
        self._strings = strings
        self._layout = layout
        self._space = Space(memory, layout)
        self._kind_at = structures.Type.kind_.offset(self._space)
        self._kinds = {value: name for name, value in layout.enum("c10::TypeKind").items()}

    def kind(self, address: int) -> str:
        """The name of the type's ``TypeKind``: "TensorType". Raises BadData, MemoryFault."""
        value = self._memory.u32(address + self._kind_at)
        kind = self._kinds.get(value)
        if not kind:
            raise BadData(f"there is no type at {address:#x} (kind {value})")
        return kind

    def element(self, address: int) -> int:
        """Address of the type inside the list, optional, future, … type at ``address``. Raises BadData (it has none),
        LayoutError, MemoryFault."""
        kind = self.kind(address)
        if kind not in _ELEMENT:
            raise BadData(f"the {kind} at {address:#x} has no element type")
        member, _ = _ELEMENT[kind]
        return member.read(self._space, address + member.offset(self._space))

    @memoized
    def text(self, address: int, depth: int = 0) -> str:
        """The type at ``address`` as PyTorch writes it in a schema; ``depth`` is the number of types around it. Raises
        BadData (it cannot be shown), LayoutError, MemoryFault."""
        if depth > 32:
            raise BadData(f"the type at {address:#x} is nested deeper than 32 levels")
        kind = self.kind(address)
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        if kind in _ELEMENT:
            return _ELEMENT[kind][1].format(self.text(self.element(address), depth + 1))
        if kind == "DictType":
            return f"Dict({self._joined(structures.DictType(self._space, address).types, depth)})"
        if kind == "TupleType":
            members = structures.TupleType(self._space, address)
            if members.schema_:  # it prints differently, and does not occur in operators
                raise BadData(f"the type at {address:#x} is a named tuple, which is not shown")
            return f"({self._joined(members.elements_, depth)})"
        if kind == "UnionType":
            return f"Union[{self._joined(structures.UnionType(self._space, address).types_, depth)}]"
        if kind == "VarType":
            return self._strings.read(structures.VarType(self._space, address).name_, 256)
        if kind in ("ClassType", "InterfaceType"):
            optional = structures.NamedType(self._space, address).name_
            value = optional + optional_shape(self._layout, structures.QualifiedName.OF).value
            name = self._strings.read(structures.QualifiedName(self._space, value).qualifiedName_, 4096)
            return name if kind == "ClassType" else f"InterfaceType<{name.rpartition('.')[2]}>"
        raise BadData(f"the type at {address:#x} is a {kind}, which is not shown")

    def _joined(self, vector: int, depth: int) -> str:
        """The types in the vector of TypePtr at ``vector`` as text, separated by commas; ``depth`` as in ``text``."""
        # c10::TypePtr and shared_ptr<Type> have 16 bytes: the pointer is the first word of both
        first, count = vector_span(self._memory, vector, 16, 1024)
        members = (self._memory.u64(first + index * 16) for index in range(count))
        return ", ".join(self.text(member, depth + 1) for member in members)


class SchemaText(NamedTuple):
    """A schema as PyTorch prints it."""

    text: str
    """``aten::mm(Tensor self, Tensor mat2) -> Tensor``, with "?" in place of what could not be read."""
    arguments: tuple[str, ...]
    """Names of the arguments, in order; "" for an unnamed one."""
    returns: int
    """Number of results; -1 for a variable number."""
    missing: tuple[str, ...]
    """A sentence for each part that could not be read."""


class SchemaArgument(NamedTuple):
    """A ``c10::Argument`` as printed."""

    text: str
    name: str
    keyword_only: bool


class _ArgumentOffsets(NamedTuple):
    """Offsets in a ``c10::Argument``, in bytes; ``default`` and ``length`` are those of the flags of two optionals."""

    name: int
    real_type: int
    keyword_only: int
    alias: int
    default: int
    length: int


class SchemaReader:
    """Reads ``c10::FunctionSchema`` objects as text. If the layout lacks something, only the argument that needs it is
    unknown."""

    def __init__(self, memory: Memory, layout: Layout, strings: StringReader, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._strings = strings
        self._types = TypeReader(memory, layout, strings)
        self._values = CppValues(memory, layout, lambda _: "")  # no schema has a tensor
        self._layout = layout
        self._space = Space(memory, layout)
        self._symbols_at = INTERNED_STRINGS.address(symbolizer)
        self._missing: list[str] = []  # as in SchemaText, of the schema that is being read
        self._plain: dict[int, str] = {}  # type address → text, for types of arguments without alias or length

    def read(self, address: int) -> SchemaText:
        """The FunctionSchema at ``address``. Raises MemoryFault, BadData if there is none."""
        self._missing = []
        name = self._strings.read(address)
        overload = self._strings.read(address + self._strings.size)
        schema = structures.FunctionSchema(self._space, address)
        arguments, returns = self._arguments(schema.arguments_), self._arguments(schema.returns_)
        open_arguments, open_returns = schema.is_vararg_, schema.is_varret_
        parts = [argument.text for argument in arguments] + ["..."] * bool(open_arguments)
        starred = next((number for number, argument in enumerate(arguments) if argument.keyword_only), None)
        if starred is not None:
            parts.insert(starred, "*")
        text = f"{name}.{overload}" if overload else name
        text += f"({', '.join(parts)}) -> {self._results(returns, open_returns)}"
        names = tuple(argument.name for argument in arguments)
        return SchemaText(text, names, -1 if open_returns else len(returns), tuple(self._missing))

    def results(self, address: int) -> str:
        """The results alone of the FunctionSchema at ``address``, as ``read`` has them behind the arrow. Raises
        MemoryFault, BadData."""
        schema = structures.FunctionSchema(self._space, address)
        return self._results(self._arguments(schema.returns_), schema.is_varret_)

    @staticmethod
    def _results(returns: list[SchemaArgument], open_ended: bool) -> str:
        """The text of results behind the arrow; ``open_ended``: any number of further results may follow."""
        text = ", ".join([result.text for result in returns] + ["..."] * bool(open_ended))
        single = (len(returns) == 1 and not open_ended) or (not returns and open_ended)
        return text if single and not text.startswith("(") else f"({text})"

    def _arguments(self, vector: int) -> list[SchemaArgument]:
        """The arguments or results in a vector of ``c10::Argument``. Raises MemoryFault, BadData."""
        size = structures.ArgumentStruct.size(self._space)
        # PyTorch itself allows 64 arguments that dispatch; the longest operator has 40
        first, count = vector_span(self._memory, vector, size, 512)
        addresses = range(first, first + count * size, size)
        try:
            raw, offsets = self._memory.read(first, count * size), self._offsets
        except (MemoryFault, LayoutError):  # then only some arguments cannot be read
            return [self._read_argument(structures.ArgumentStruct(self._space, address)) for address in addresses]
        return [
            self._plain_argument(raw[address - first :], address, offsets)
            or self._read_argument(structures.ArgumentStruct(self._space, address))
            for address in addresses
        ]

    @cached_property
    def _offsets(self) -> _ArgumentOffsets:
        """The offsets in this build's ``c10::Argument``. Raises LayoutError."""
        argument, space = structures.ArgumentStruct, self._space
        default, length = optional_shape(self._layout, structures.IValue.OF), optional_shape(self._layout, "int")
        return _ArgumentOffsets(
            argument.name_.offset(space),
            argument.real_type_.offset(space),
            argument.kwarg_only_.offset(space),
            argument.alias_info_.offset(space),
            argument.default_value_.offset(space) + default.engaged,
            argument.N_.offset(space) + length.engaged,
        )

    def _plain_argument(self, raw: bytes, address: int, offsets: _ArgumentOffsets) -> SchemaArgument | None:
        """The argument at ``address``, whose bytes ``raw`` begins with, if it has only a name and a type that was read
        before, as most have; else None, so that ``_read_argument`` reads it."""
        name_at, type_at, keyword_at, alias_at, default_at, length_at = offsets
        if raw[default_at] or raw[length_at] or any(raw[alias_at : alias_at + 8]):
            return None
        text = self._plain.get(int.from_bytes(raw[type_at : type_at + 8], "little"))
        if text is None:
            return None
        name = self._strings.parse(raw, name_at, address + name_at)
        return SchemaArgument(f"{text} {name}" if name else text, name, raw[keyword_at] != 0)

    def _read_argument(self, argument: structures.ArgumentStruct) -> SchemaArgument:
        """The printed form of any argument; its type is "?" if that cannot be read."""
        name = self._strings.read(argument.name_)
        keyword_only = argument.kwarg_only_
        try:
            text = self._argument_text(argument, name)
        except (MemoryFault, BadData, LayoutError) as error:
            self._missing.append(f"argument {name}: {error}")
            text = f"{_UNKNOWN} {name}".rstrip()
        return SchemaArgument(text, name, keyword_only)

    def _argument_text(self, argument: structures.ArgumentStruct, name: str) -> str:
        """``Tensor(a!)[]? name=default``. Raises MemoryFault, BadData, LayoutError."""
        kind_of, whole, missing = self._types.kind, argument.real_type_, len(self._missing)
        optional = kind_of(whole) == "OptionalType"
        inner = self._types.element(whole) if optional else whole
        alias = structures.AliasInfo(self._space, argument.alias_info_)
        length: int | None = None
        if kind_of(inner) == "ListType":
            text = self._type_text(self._types.element(inner))
            if alias.address:
                size = structures.AliasInfo.size(self._space)
                first, count = vector_span(self._memory, alias.containedTypes_, size, _ALIAS_LIMIT)
                contained = structures.AliasInfo(self._space, first)
                text += self._alias_text(contained, needed=True) if count else ""
            length = self._optional_value(argument.N_, "int")
            text += "[]" if length is None else f"[{self._memory.i32(length)}]"
        else:
            text = self._type_text(inner)
        text += self._alias_text(alias, needed=False) + ("?" if optional else "")
        if length is None and not alias.address and missing == len(self._missing):
            self._plain[whole] = text
        text += f" {name}" if name else ""
        default = self._optional_value(argument.default_value_, structures.IValue.OF)
        return text if default is None else f"{text}={self._default(default, whole, inner)}"

    def _type_text(self, address: int) -> str:
        """The type as text; "?" and a reason in ``_missing`` if it cannot be shown."""
        try:
            return self._types.text(address)
        except BadData as error:
            self._missing.append(str(error))
            return _UNKNOWN

    def _optional_value(self, optional: int, inner: str) -> int | None:
        """Address of the value in the optional ``inner`` (a C++ type) at ``optional``; None if it has none."""
        shape = optional_shape(self._layout, inner)
        return optional + shape.value if self._memory.u8(optional + shape.engaged) else None

    def _default(self, value: int, whole: int, inner: int) -> str:
        """The default value of an argument as text. ``value`` is the IValue's address, ``whole`` that of the argument's
        type, ``inner`` that of the type in it if it is optional, else the same."""
        if self._types.kind(inner) == "StringType" and self._values.tag(value) == "String":
            return quoted(self._value_text(value))
        if self._types.kind(whole) == "ListType" and self._types.kind(self._types.element(whole)) == "IntType":
            items = self._list_texts(value)
            if len(items) > 1 and len(set(items)) == 1:
                return items[0]
        return self._value_text(value)

    def _value_text(self, address: int, depth: int = 0) -> str:
        """The IValue at ``address`` as PyTorch prints it (operator<<); a string without quotes. ``depth`` is the number
        of lists around it. Raises BadData for kinds that are no defaults, MemoryFault."""
        tag, payload = self._values.tag(address), structures.IValue(self._space, address).payload
        if tag == "Double":
            return double_text(unpack("<d", self._memory.read(payload, 8))[0])
        if tag == "String":
            return self._strings.read(structures.ConstantString(self._space, self._memory.u64(payload)).str_, 4096)
        if tag == "GenericList" and depth < 8:
            return f"[{', '.join(self._list_texts(address, depth))}]"
        if tag in ("None", "Int", "Bool", "Device"):
            return self._values.boxed(address).text
        raise BadData(f"the value at {address:#x} is a {tag}, which is not shown")

    def _list_texts(self, address: int, depth: int = 0) -> list[str]:
        """The elements of the list in the IValue at ``address``, as ``_value_text``. Raises BadData, MemoryFault."""
        if self._values.tag(address) != "GenericList":
            raise BadData(f"the value at {address:#x} is not a list")
        payload = structures.IValue(self._space, address).payload
        items, size = structures.ListImpl(self._space, self._memory.u64(payload)).list, self._values.ivalue_size
        first, count = vector_span(self._memory, items, size, 1024)
        return [self._value_text(first + index * size, depth + 1) for index in range(count)]

    def _alias_text(self, alias: structures.AliasInfo, needed: bool) -> str:
        """``(a! -> b)``; "" without alias information, or if there is no before-set and it is not ``needed``."""
        before = self._symbols(alias.beforeSets_) if alias.address else []
        if not alias.address or not (before or needed):
            return ""
        after = self._symbols(alias.afterSets_)
        text = "|".join(before) + ("!" if alias.isWrite_ else "")
        if set(before) != set(after):
            text += " -> " + "|".join(after)
        return f"({text})"

    def _symbols(self, symbols: structures.UnorderedSet) -> list[str]:
        """The unqualified names of the Symbols in an ``unordered_set``, in its order. Raises BadData, MemoryFault."""
        count = symbols.elements
        if count > _ALIAS_LIMIT:
            raise BadData(f"the alias set at {symbols.address:#x} claims {count} elements")
        node = symbols.first
        names: list[str] = []
        while node and len(names) <= count:
            symbol = self._memory.u32(node + 8)
            if self._symbols_at:
                names.append(self.symbol_text(symbol))
            else:
                self._missing.append("alias names: the table of interned strings has no symbol")
                names.append(_UNKNOWN)
            node = self._memory.u64(node)
        if len(names) != count:
            raise BadData(f"the alias set at {symbols.address:#x} does not have the {count} elements that it claims")
        return names

    @memoized
    def symbol_text(self, symbol: int) -> str:
        """The unqualified name of the ``c10::Symbol`` of that number. Raises BadData, MemoryFault, LayoutError."""
        if not self._symbols_at:
            raise BadData("the table of interned strings has no symbol")
        size = structures.SymbolInfo.size(self._space)
        table = structures.InternedStrings(self._space, self._symbols_at)
        first, count = vector_span(self._memory, table.sym_to_info_, size, 1 << 20)
        if symbol >= count:
            raise BadData(f"there is no interned string {symbol}")
        return self._strings.read(structures.SymbolInfo(self._space, first + symbol * size).unqual_name)


_COMMA = r", (?![^(\[]*[)\]])"
"""A comma outside of brackets."""


def schema_types(text: str) -> list[tuple[str, str]]:
    """(schema type without alias mark, name) of each argument in the text of a schema: ("Tensor", "self")."""
    inside = text[text.find("(") + 1 : text.rfind(") ->")]
    parts = (re.sub(r"\([^)]*\)", "", part).split("=")[0].split() for part in re.split(_COMMA, inside))
    return [(words[0], words[1]) for words in parts if len(words) == 2]


def schema_defaults(text: str) -> dict[str, str]:
    """Argument → its default value, for those that have one in the text of a schema, as it is written there."""
    inside = text[text.find("(") + 1 : text.rfind(") ->")]
    declared = (part.partition("=") for part in re.split(_COMMA, inside) if "=" in part)
    return {left.rpartition(" ")[2]: default for left, _, default in declared}


def keyword_arguments(text: str) -> frozenset[str]:
    """Names of the arguments behind the ``*`` in the text of a schema, which are given by keyword alone."""
    inside = text[text.find("(") + 1 : text.rfind(") ->")]
    parts = re.split(_COMMA, inside)
    behind = parts[parts.index("*") + 1 :] if "*" in parts else []
    return frozenset(part.partition("=")[0].rpartition(" ")[2] for part in behind)


def hidden_result(schema: str) -> bool | None:
    """True if C++ functions of an operator with that schema return the result through a pointer that the caller passes
    first (sret): a new tensor, several results, and all with a destructor (c10/core/Scalar.h, SymInt.h, SymFloat.h,
    SymBool.h). False for a reference, a number or an enumeration; None for any other result (torchgen/api/cpp.py)."""
    result = schema.rpartition("-> ")[2].strip()
    if result.startswith("Tensor"):
        return "!" not in result
    if result in ("()", "int", "bool", "float", "ScalarType", "Layout"):
        return False
    return True if result.startswith("(") or result in ("Scalar", "SymInt", "SymFloat", "SymBool") else None


class SchemaResult(NamedTuple):
    """One result of an operator."""

    kind: str
    """Its schema type."""
    name: str
    alias: str
    """The letter that it shares with the argument that is returned; "" for a new value."""


def schema_results(text: str) -> tuple[SchemaResult, ...]:
    """The results in the text of a schema, unnamed ones as ``result0``, ``result1``, …"""
    results = text.rpartition("-> ")[2].strip()
    inside = results[1:-1] if results.startswith("(") else results
    parsed = []
    for number, part in enumerate(re.split(_COMMA, inside) if inside else []):
        alias = re.search(r"\((\w)[^)]*\)", part)
        kind, name, *_ = [*re.sub(r"\([^)]*\)", "", part).split(), f"result{number}"]
        parsed.append(SchemaResult(kind, name, alias.group(1) if alias else ""))
    return tuple(parsed)


def aliased_arguments(text: str) -> dict[str, str]:
    """Alias letter → name of the argument that the operator writes to, for each ``(a!)`` in the text of a schema."""
    inside = text[text.find("(") + 1 : text.rfind(") ->")]
    return dict(re.findall(r"\w+\((\w)!\)\S* (\w+)", inside))


def is_operator_name(name: str, overload: str) -> bool:
    """True if PyTorch's parser of schemas accepts this name and overload, as ``aten::add`` and ``Tensor`` (parseName in
    torch/csrc/jit/frontend/function_schema_parser.cpp), of up to 1,024 letters: its longest has a tenth of that."""
    is_qualified = re.fullmatch(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+", name, re.ASCII)
    return max(len(name), len(overload)) <= 1024 and bool(is_qualified and re.fullmatch(r"\w*", overload, re.ASCII))
