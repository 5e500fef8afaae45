"""LLDB's own views of C++ types of PyTorch: summaries and synthetic children, for code that has debug information.

LLDB applies them by a type's name. Only names, sizes and addresses of values come from LLDB; what is in them is read by
inspection/types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import lldb

from gdbext.hosts.lldb.selection import keep_callback
from gdbext.tools.tensor.cpp_object import SUMMARIZED_TYPES, CppObject, SummarizedType

if TYPE_CHECKING:
    from gdbext.hosts.debugger.frame_source import SummarySource
    from gdbext.hosts.lldb.selection import Selection
    from gdbext.tools.tensor.cpp_object import Child, TypeSummary

CATEGORY = "gdbext"
"""The name for ``type category disable gdbext``."""


class ObjectChildren:
    """The parts of one value. LLDB makes the object and calls its methods; where we have no summary the parts are
    LLDB's own."""

    printers: LldbTypePrinters

    def __init__(self, value: lldb.SBValue, _: dict[str, object]) -> None:
        self._value = value.GetNonSyntheticValue()
        self._parts: list[lldb.SBValue] | None = None

    def update(self) -> bool:
        """The process may have run; False: what was made of it is not kept."""
        self._parts = None
        return False

    def has_children(self) -> bool:
        """True if there is any part."""
        return bool(self._all())

    def num_children(self) -> int:
        """Number of parts that a value has."""
        return len(self._all())

    def get_child_index(self, name: str) -> int:
        """The number of a part, -1 where there is none of that name."""
        return next((at for at, part in enumerate(self._all()) if part.GetName() == name), -1)

    def get_child_at_index(self, index: int) -> lldb.SBValue | None:
        """The part with that number."""
        parts = self._all()
        return parts[index] if 0 <= index < len(parts) else None

    def _all(self) -> list[lldb.SBValue]:
        if self._parts is None:
            summary = self.printers.summary_of(self._value)
            self._parts = list(_parts(self._value, summary)) if summary else list(self._value)
        return self._parts


class LldbTypePrinters:
    """The category of one debugger, from its making until ``remove``."""

    def __init__(self, selection: Selection, source: SummarySource) -> None:
        self._selection = selection
        self._source = source
        debugger = selection.debugger
        debugger.DeleteCategory(CATEGORY)
        category = debugger.CreateCategory(CATEGORY)
        children = keep_callback(type("ObjectChildren", (ObjectChildren,), {"printers": self}))
        summary = keep_callback(self._text_of)
        for known in SUMMARIZED_TYPES:
            _add(category, known, summary, children)
        category.SetEnabled(True)

    def remove(self) -> None:
        """Remove our printers from LLDB."""
        self._selection.debugger.DeleteCategory(CATEGORY)

    def _text_of(self, value: lldb.SBValue, _: dict[str, object]) -> str:
        """Called by LLDB for each value of these types that it shows."""
        summary = self.summary_of(value.GetNonSyntheticValue())
        return summary.text if summary else ""

    def summary_of(self, value: lldb.SBValue) -> TypeSummary | None:
        """None where LLDB has to show the value itself: of a process that is not the selected one, of no process, while
        a command of ours runs elsewhere."""
        if value.GetProcess().GetUniqueID() != self._selection.process().GetUniqueID():
            return None
        found = _object(value)
        with self._selection.session_if_free() as is_free:
            return self._source.of(found) if found and is_free else None


def _add(category: lldb.SBTypeCategory, known: SummarizedType, summary: str, children: str) -> None:
    name = f"^{re.escape(known.name)}<.+>$" if known.is_template else known.name
    which = lldb.SBTypeNameSpecifier(name, known.is_template)
    options = lldb.eTypeOptionCascade | lldb.eTypeOptionSkipPointers
    hidden = lldb.eTypeOptionHideValue | (0 if known.has_children else lldb.eTypeOptionHideChildren)
    category.AddTypeSummary(which, lldb.SBTypeSummary.CreateWithFunctionName(summary, options | hidden))
    if known.has_children:
        category.AddTypeSynthetic(which, lldb.SBTypeSynthetic.CreateWithClassName(children, options))


def _object(value: lldb.SBValue) -> CppObject | None:
    kind = _kind(value)
    element = _element(kind)
    address, raw = _address(value), b""
    if address == lldb.LLDB_INVALID_ADDRESS:
        address, raw = 0, _bytes(value)
    if not address and not raw:
        return None
    name, size = (_plain(element).GetName(), element.GetByteSize()) if element.IsValid() else ("", 0)
    return CppObject(kind.GetName(), address, raw, name, size)


def _address(value: lldb.SBValue) -> int:
    is_reference = value.GetType().IsReferenceType()
    return int(value.GetValueAsUnsigned() if is_reference else value.GetLoadAddress())


def _kind(value: lldb.SBValue) -> lldb.SBType:
    """Its type, without reference, typedefs and qualifiers."""
    kind = _plain(value.GetType())
    return _plain(kind.GetDereferencedType()) if kind.IsReferenceType() else kind


def _plain(kind: lldb.SBType) -> lldb.SBType:
    return kind.GetCanonicalType().GetUnqualifiedType()


def _element(kind: lldb.SBType) -> lldb.SBType:
    """The first template argument; an invalid type where it has none."""
    return kind.GetTemplateArgumentType(0) if kind.GetNumberOfTemplateArguments() else lldb.SBType()


def _bytes(value: lldb.SBValue) -> bytes:
    """Those of a value that is in registers."""
    data = value.GetData()
    if not data.GetByteSize():
        return b""
    error = lldb.SBError()
    raw = data.ReadRawData(error, 0, data.GetByteSize())
    return bytes(raw) if raw is not None and error.Success() else b""


def _parts(value: lldb.SBValue, summary: TypeSummary) -> Iterator[lldb.SBValue]:
    """Values where LLDB knows their type, else text. Of a map, the values under their keys."""
    if summary.shape != "map":
        for child in summary.children:
            yield _part(value, child.name, child)
        return
    for key, mapped in zip(summary.children[::2], summary.children[1::2]):
        yield _part(value, f"[{key.text}]", mapped)


def _part(value: lldb.SBValue, name: str, child: Child) -> lldb.SBValue:
    if child.type and child.address:
        kind = _known_type(value, child.type)
        if kind.IsValid() and kind.GetByteSize():
            return value.CreateValueFromAddress(name, child.address, kind)
    target = value.GetTarget()
    text = child.text.encode("utf-8", "backslashreplace") + b"\0"
    error = lldb.SBError()
    data = lldb.SBData()
    data.SetData(error, text, target.GetByteOrder(), target.GetAddressByteSize())
    return value.CreateValueFromData(name, data, target.GetBasicType(lldb.eBasicTypeChar).GetArrayType(len(text)))


def _known_type(value: lldb.SBValue, name: str) -> lldb.SBType:
    element = _element(_kind(value))
    return element if element.IsValid() and _plain(element).GetName() == name else value.GetTarget().FindFirstType(name)
