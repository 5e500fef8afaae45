"""FunctionSchema as text, exactly as PyTorch prints it, and the arguments and results in such a text, by type and name.

Formats: operator<< of FunctionSchema (ATen/core/function_schema.cpp), Argument (function_schema.h), AliasInfo
(alias_info.h) and IValue (ivalue.cpp), 2.13.0; of types see schema_types.py.

C++ functions leave results where torchgen/api/cpp.py says.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.layouts.declarations import Space
from gdbext.errors import BadData, LayoutError, MemoryFault
from gdbext.torch.assumed_symbols import INTERNED_STRINGS
from gdbext.torch.registry.schema_types import TypeReader
from gdbext.torch.values import value_structures as structures
from gdbext.torch.values.containers import StringReader, optional_shape, vector_span
from gdbext.torch.values.value_text import ValueReader, quoted

if TYPE_CHECKING:
    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.symbolizer import Symbolizer

ARGUMENT_LIMIT = 512
"""PyTorch itself allows 64 arguments that dispatch; the longest operator has 40."""
ALIAS_LIMIT = 256
"""The table of all c10::Symbols, a local static of libtorch_cpu (ATen/core/interned_strings.cpp)."""

_UNKNOWN = "?"


class SchemaText(NamedTuple):
    """A schema. ``missing`` says what could not be read; each such place is "?" in ``text``."""

    text: str
    arguments: tuple[str, ...]
    """Names of the arguments, in order; "" for an unnamed one."""
    returns: int
    """Number of results; -1 for a variable number."""
    missing: tuple[str, ...]


class SchemaArgument(NamedTuple):
    """A ``c10::Argument`` as printed, and what the schema needs to know of it."""

    text: str
    name: str
    keyword_only: bool


class _ArgumentOffsets(NamedTuple):
    """Offsets in a ``c10::Argument``, in bytes; ``default`` and ``length`` are those of the flags that there is one."""

    name: int
    real_type: int
    keyword_only: int
    alias: int
    default: int
    length: int


class SchemaReader:
    """Prints schemas. What the layout lacks costs the argument that needs it."""

    def __init__(self, memory: Memory, layout: Layout, strings: StringReader, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._strings = strings
        self._types = TypeReader(memory, layout, strings)
        self._values = ValueReader(memory, layout, strings)
        self._layout = layout
        self._space = Space(memory, layout)
        self._symbols_at = INTERNED_STRINGS.address(symbolizer)
        self._symbol_names: dict[int, str] = {}
        self._missing: list[str] = []
        self._plain: dict[int, str] = {}
        """Types of arguments that have neither alias nor length nor default → their texts, as far as they are known."""

    def read(self, address: int) -> SchemaText:
        """The FunctionSchema at ``address``. Raises MemoryFault, BadData when it is none at all."""
        self._missing = []
        name = self._strings.read(address)
        overload = self._strings.read(address + self._strings.size)
        schema = structures.FunctionSchema(self._space, address)
        arguments, returns = self._arguments(schema.arguments_), self._arguments(schema.returns_)
        open_arguments, open_returns = schema.is_vararg_, schema.is_varret_
        text = f"{name}.{overload}" if overload else name
        text += f"({self._list(arguments, open_arguments)}) -> {self._results(returns, open_returns)}"
        names = tuple(argument.name for argument in arguments)
        return SchemaText(text, names, -1 if open_returns else len(returns), tuple(self._missing))

    def results(self, address: int) -> str:
        """The results alone of the FunctionSchema at ``address``, as ``read`` has them behind the arrow. Raises
        MemoryFault, BadData."""
        schema = structures.FunctionSchema(self._space, address)
        return self._results(self._arguments(schema.returns_), schema.is_varret_)

    @staticmethod
    def _list(arguments: list[SchemaArgument], open_ended: bool) -> str:
        parts: list[str] = []
        starred = False
        for argument in arguments:
            if argument.keyword_only and not starred:
                parts.append("*")
                starred = True
            parts.append(argument.text)
        return ", ".join([*parts, "..."] if open_ended else parts)

    @staticmethod
    def _results(returns: list[SchemaArgument], open_ended: bool) -> str:
        text = ", ".join([one.text for one in returns] + (["..."] if open_ended else []))
        single = (len(returns) == 1 and not open_ended) or (not returns and open_ended)
        return text if single and not text.startswith("(") else f"({text})"

    def _arguments(self, vector: int) -> list[SchemaArgument]:
        size = structures.ArgumentStruct.size(self._space)
        first, count = vector_span(self._memory, vector, size, ARGUMENT_LIMIT)
        places = range(first, first + count * size, size)
        try:
            raw, offsets = self._memory.read(first, count * size), self._offsets
        except (MemoryFault, LayoutError):  # which costs the argument that cannot be read
            return [self._read_argument(structures.ArgumentStruct(self._space, place)) for place in places]
        return [
            self._plain_argument(raw, place - first, place, offsets)
            or self._read_argument(structures.ArgumentStruct(self._space, place))
            for place in places
        ]

    @cached_property
    def _offsets(self) -> _ArgumentOffsets:
        found, space = structures.ArgumentStruct, self._space
        default, length = optional_shape(self._layout, structures.IValue.OF), optional_shape(self._layout, "int")
        return _ArgumentOffsets(
            found.name_.offset(space),
            found.real_type_.offset(space),
            found.kwarg_only_.offset(space),
            found.alias_info_.offset(space),
            found.default_value_.offset(space) + default.engaged,
            found.N_.offset(space) + length.engaged,
        )

    def _plain_argument(self, raw: bytes, at: int, place: int, offsets: _ArgumentOffsets) -> SchemaArgument | None:
        """The argument whose bytes are at ``raw[at:]``, where it is nothing but a known type and a name: most are."""
        name_at, type_at, keyword_at, alias_at, default_at, length_at = offsets
        if raw[at + default_at] or raw[at + length_at] or any(raw[at + alias_at : at + alias_at + 8]):
            return None
        text = self._plain.get(int.from_bytes(raw[at + type_at : at + type_at + 8], "little"))
        if text is None:
            return None
        name = self._strings.parse(raw, at + name_at, place + name_at)
        return SchemaArgument(f"{text} {name}" if name else text, name, raw[at + keyword_at] != 0)

    def _read_argument(self, argument: structures.ArgumentStruct) -> SchemaArgument:
        name = self._strings.read(argument.name_)
        keyword_only = argument.kwarg_only_
        try:
            text = self._argument_text(argument, name)
        except (MemoryFault, BadData, LayoutError) as error:
            self._missing.append(f"argument {name}: {error}")
            text = f"{_UNKNOWN} {name}".rstrip()
        return SchemaArgument(text, name, keyword_only)

    def _argument_text(self, argument: structures.ArgumentStruct, name: str) -> str:
        kind_of, whole, missing = self._types.kind, argument.real_type_, len(self._missing)
        optional = kind_of(whole) == "OptionalType"
        inner = self._types.element(whole) if optional else whole
        alias = structures.AliasInfo(self._space, argument.alias_info_)
        if kind_of(inner) == "ListType":
            text = self._type_text(self._types.element(inner)) + self._contained_alias(alias)
            length = self._length(argument.N_)
            text += f"[{length}]"
        else:
            length, text = "", self._type_text(inner)
        text += self._alias_text(alias, needed=False) + ("?" if optional else "")
        if not (length or alias.address) and missing == len(self._missing):
            self._plain[whole] = text
        text += f" {name}" if name else ""
        default = self._held(argument.default_value_, structures.IValue.OF)
        return text if default is None else f"{text}={self._default(default, whole, inner)}"

    def _type_text(self, address: int) -> str:
        try:
            return self._types.text(address)
        except BadData as error:
            self._missing.append(str(error))
            return _UNKNOWN

    def _length(self, address: int) -> str:
        length = self._held(address, "int")
        return "" if length is None else str(self._memory.i32(length))

    def _held(self, optional: int, inner: str) -> int | None:
        """Address of the value of an optional; None without one."""
        shape = optional_shape(self._layout, inner)
        return optional + shape.value if self._memory.u8(optional + shape.engaged) else None

    def _default(self, value: int, whole: int, inner: int) -> str:
        if self._types.kind(inner) == "StringType" and self._values.tag(value) == "String":
            return quoted(self._values.text(value))
        if self._types.kind(whole) == "ListType" and self._types.kind(self._types.element(whole)) == "IntType":
            items = self._values.list_texts(value)
            if len(items) > 1 and len(set(items)) == 1:
                return items[0]
        return self._values.text(value)

    # --- alias sets ------------------------------------------------------------------------------

    def _contained_alias(self, alias: structures.AliasInfo) -> str:
        if not alias.address:
            return ""
        size = structures.AliasInfo.size(self._space)
        first, count = vector_span(self._memory, alias.containedTypes_, size, ALIAS_LIMIT)
        return self._alias_text(structures.AliasInfo(self._space, first), needed=True) if count else ""

    def _alias_text(self, alias: structures.AliasInfo, needed: bool) -> str:
        """``(a! -> b)``; "" without alias information, or where there is no before-set and it is not ``needed``."""
        if not alias.address:
            return ""
        before = self._symbols(alias.beforeSets_)
        if not before and not needed:
            return ""
        after = self._symbols(alias.afterSets_)
        text = "|".join(before) + ("!" if alias.isWrite_ else "")
        if set(before) != set(after):
            text += " -> " + "|".join(after)
        return f"({text})"

    def _symbols(self, found: structures.UnorderedSet) -> list[str]:
        """The unqualified names of an ``unordered_set<Symbol>``, in its order."""
        count = found.elements
        if count > ALIAS_LIMIT:
            raise BadData(f"the alias set at {found.address:#x} claims {count} elements")
        node = found.first
        names: list[str] = []
        while node and len(names) <= count:
            names.append(self._symbol_name(self._memory.u32(node + 8)))
            node = self._memory.u64(node)
        if len(names) != count:
            raise BadData(f"the alias set at {found.address:#x} has other than {count} elements")
        return names

    def symbol_text(self, symbol: int) -> str:
        """The unqualified name of a ``c10::Symbol``. Raises BadData, MemoryFault, LayoutError."""
        if not self._symbols_at:
            raise BadData("the table of interned strings has no symbol")
        if symbol not in self._symbol_names:
            self._symbol_names[symbol] = self._read_symbol(self._symbols_at, symbol)
        return self._symbol_names[symbol]

    def _symbol_name(self, symbol: int) -> str:
        if not self._symbols_at:
            self._missing.append("alias names: the table of interned strings has no symbol")
            return _UNKNOWN
        return self.symbol_text(symbol)

    def _read_symbol(self, interned: int, symbol: int) -> str:
        size, table = structures.SymbolInfo.size(self._space), structures.InternedStrings(self._space, interned)
        first, count = vector_span(self._memory, table.sym_to_info_, size, 1 << 20)
        if symbol >= count:
            raise BadData(f"there is no interned string {symbol}")
        return self._strings.read(structures.SymbolInfo(self._space, first + symbol * size).unqual_name)


_IN_REGISTERS = ("()", "int", "bool", "float", "ScalarType", "Layout")
_WITH_DESTRUCTORS = ("Scalar", "SymInt", "SymFloat", "SymBool")


def schema_types(text: str) -> list[tuple[str, str]]:
    """(type without alias mark, name) of each argument of a schema."""
    inside = text[text.find("(") + 1 : text.rfind(") ->")]
    found = []
    for part in re.split(r", (?![^(\[]*[)\]])", inside):
        words = re.sub(r"\([^)]*\)", "", part).split("=")[0].split()
        if len(words) == 2:
            found.append((words[0], words[1]))
    return found


def hidden_result(schema: str) -> bool | None:
    """The result goes through a hidden first argument: a new tensor or several results do, and whatever has a
    destructor; a reference, a number or an enumeration does not.

    None where the schema's result is something else. Results of C++ functions: torchgen/api/cpp.py; classes that have
    destructors: c10/core/Scalar.h, SymInt.h, SymFloat.h, SymBool.h.
    """
    result = schema.rpartition("-> ")[2].strip()
    if result.startswith("Tensor"):
        return "!" not in result
    if result in _IN_REGISTERS:
        return False
    return True if result.startswith("(") or result in _WITH_DESTRUCTORS else None


class SchemaResult(NamedTuple):
    """One result. ``alias`` is the letter that an argument which is returned itself has, too: "" for a new value."""

    kind: str
    name: str
    alias: str


def schema_results(text: str) -> tuple[SchemaResult, ...]:
    """The results, unnamed ones as ``result0``, ``result1``, …"""
    results = text.rpartition("-> ")[2].strip()
    inside = results[1:-1] if results.startswith("(") else results
    found = []
    for number, part in enumerate(re.split(r", (?![^(\[]*[)\]])", inside) if inside else []):
        alias = re.search(r"\((\w)[^)]*\)", part)
        words = re.sub(r"\([^)]*\)", "", part).split()
        name = words[1] if len(words) > 1 else f"result{number}"
        found.append(SchemaResult(words[0], name, alias.group(1) if alias else ""))
    return tuple(found)


def aliased_arguments(text: str) -> dict[str, str]:
    """Alias letter → name of the argument that is written to."""
    inside = text[text.find("(") + 1 : text.rfind(") ->")]
    found = re.findall(r"\w+\((\w)!\)\S* (\w+)", inside)
    return dict(found)


_NAME_LIMIT = 1024
"""Letters; the longest name that PyTorch registers has a tenth of that."""
_NAME = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+", re.ASCII)
_OVERLOAD = re.compile(r"\w*", re.ASCII)


def is_name(name: str, overload: str) -> bool:
    """``aten::add`` and ``Tensor``: what the parser of schemas takes for a name and an overload, or none (parseName in
    torch/csrc/jit/frontend/function_schema_parser.cpp)."""
    short = len(name) <= _NAME_LIMIT and len(overload) <= _NAME_LIMIT
    return short and bool(_NAME.fullmatch(name) and _OVERLOAD.fullmatch(overload))
