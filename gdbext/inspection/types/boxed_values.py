"""IValues, Lists and Dicts as debuggers show them.

Layouts: ATen/core/ivalue.h, ivalue_inl.h, List.h, Dict.h, c10/util/order_preserving_flat_hash_map.h, 2.13.0.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from gdbext.errors import BadData, GdbextError
from gdbext.inspection.types.type_summary import Child, TypeSummary
from gdbext.torch.values.containers import vector_span

if TYPE_CHECKING:
    from gdbext.layouts.layout import Layout
    from gdbext.process.memory import Memory
    from gdbext.torch.values.cpp_values import CppValues

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
        self._layout = layout
        self._values = values
        self._shape = layout.struct(_IVALUE)
        self._tags = {number: name for name, number in layout.enum("c10::IValue::Tag").items()}

    def of_value(self, address: int, limit: int = ELEMENT_LIMIT) -> TypeSummary:
        """The IValue there: its tag and its value; at most ``limit`` elements of a container are children."""
        tag = self._tags.get(self._memory.u32(address + self._shape.offset("tag")))
        if tag is None:
            raise BadData(f"there is no IValue at {address:#x}")
        if tag in ("None", "Uninitialized"):
            return TypeSummary(tag)
        payload = address + self._shape.offset("payload")
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
            at = self._layout.struct("c10::ivalue::ComplexHolder").offset("val")
            parts = struct.unpack("<2d", self._memory.read(self._memory.u64(payload) + at, 16))
            return f"ComplexDouble {complex(*parts)!r}"
        return f"{tag} at {self._memory.u64(payload):#x}"

    # --- containers ------------------------------------------------------------------------------

    def of_list(self, implementation: int, limit: int = ELEMENT_LIMIT) -> TypeSummary:
        """The c10::detail::ListImpl there."""
        items = implementation + self._layout.struct("c10::detail::ListImpl").offset("list")
        return self._sequence(*vector_span(self._memory, items, self._shape.size, _LONGEST), limit)

    def _tuple(self, implementation: int, limit: int) -> TypeSummary:
        """The c10::ivalue::Tuple there."""
        elements = implementation + self._layout.struct("c10::ivalue::Tuple").offset("elements_")
        shape = self._layout.struct("c10::ivalue::TupleElements")
        inline = self._memory.u64(elements + shape.offset("inlineSize_"))
        if inline > _INLINE_TUPLE:
            raise BadData(f"a tuple with {inline} values in itself")
        if inline:
            return self._sequence(elements + shape.offset("elementsInline_"), inline, limit)
        vector = elements + shape.offset("elementsVector_")
        return self._sequence(*vector_span(self._memory, vector, self._shape.size, _LONGEST), limit)

    def _sequence(self, first: int, count: int, limit: int) -> TypeSummary:
        size, shown = self._shape.size, min(count, limit)
        children = tuple(self._child(f"[{each}]", first + size * each) for each in range(shown))
        return TypeSummary(count_text(count, min(count, ELEMENT_LIMIT)), children, "array")

    def of_dict(self, implementation: int, limit: int = ELEMENT_LIMIT) -> TypeSummary:
        """The c10::detail::DictImpl there: its entries in the order in which they were inserted."""
        table = implementation + self._layout.struct("c10::detail::DictImpl").offset("dict")
        entries, count = self._entries(table, limit)
        value = self._layout.struct("c10::detail::DictImpl::dict.entry").offset("value")
        children: list[Child] = []
        for number, entry in enumerate(entries):
            children.append(self._child(f"[{number}].key", entry + value))
            children.append(self._child(f"[{number}].value", entry + value + self._shape.size))
        return TypeSummary(count_text(count, min(count, ELEMENT_LIMIT)), tuple(children), "map")

    def _entries(self, table: int, limit: int) -> tuple[list[int], int]:
        """Addresses of the first entries, and how many there are. Every link is checked both ways."""
        shape = self._layout.struct("c10::detail::DictImpl::dict")
        entry = self._layout.struct("c10::detail::DictImpl::dict.entry")
        after, before = entry.offset("next"), entry.offset("prev")
        count = self._memory.u64(table + shape.offset("num_elements"))
        end = self._memory.u64(table + shape.offset("sentinel"))
        if count > _LONGEST:
            raise BadData(f"a dict of {count} elements")
        found: list[int] = []
        at = end
        for _ in range(min(count, limit)):
            following = self._memory.u64(at + after)
            if following == end or self._memory.u64(following + before) != at:
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
