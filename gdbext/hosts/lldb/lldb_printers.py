"""LLDB's summaries and synthetic children of C++ types of PyTorch, for code that has debug information.

LLDB applies them by a type's name. It supplies names, sizes and addresses of values only;
tools/tensor/cpp_summaries.py reads their contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import lldb

from gdbext.hosts.lldb.lldb_callbacks import keep_callback
from gdbext.tools.tensor.cpp_object import SUMMARIZED_TYPES, CppObject

if TYPE_CHECKING:
    from gdbext.hosts.debugger.frame_source import SummarySource
    from gdbext.hosts.lldb.selection import Selection
    from gdbext.tools.tensor.cpp_object import Child, TypeSummary

CATEGORY = "gdbext"
"""The name for ``type category disable gdbext``."""


class ObjectChildren:
    """The parts of one value; LLDB's own without a summary of ours. LLDB makes the object and calls it."""

    printers: LldbTypePrinters

    def __init__(self, value: lldb.SBValue, _: dict[str, object]) -> None:
        self._value = value.GetNonSyntheticValue()
        self._parts: list[lldb.SBValue] | None = None

    def update(self) -> bool:
        """Called when the process may have run; False: LLDB is not to keep the parts."""
        self._parts = None
        return False

    def has_children(self) -> bool:
        return bool(self._all())

    def num_children(self) -> int:
        return len(self._all())

    def get_child_index(self, name: str) -> int:
        """The index of the part of that name, -1 without one."""
        return next((index for index, part in enumerate(self._all()) if part.GetName() == name), -1)

    def get_child_at_index(self, index: int) -> lldb.SBValue | None:
        parts = self._all()
        return parts[index] if 0 <= index < len(parts) else None

    def _all(self) -> list[lldb.SBValue]:
        """All parts, read once at each stop."""
        if self._parts is None:
            summary = self.printers.summary_of(self._value)
            self._parts = list(_parts(self._value, summary)) if summary else list(self._value)
        return self._parts


class LldbTypePrinters:
    """Our summaries and children of types in one debugger, registered until ``remove``."""

    def __init__(self, selection: Selection, source: SummarySource) -> None:
        self._selection = selection
        self._source = source
        debugger = selection.debugger
        debugger.DeleteCategory(CATEGORY)
        category = debugger.CreateCategory(CATEGORY)
        children = keep_callback(type("ObjectChildren", (ObjectChildren,), {"printers": self}))
        summary = keep_callback(self._text_of)
        for kind in SUMMARIZED_TYPES:
            name = f"^{re.escape(kind.name)}<.+>$" if kind.is_template else kind.name
            specifier = lldb.SBTypeNameSpecifier(name, kind.is_template)
            options = lldb.eTypeOptionCascade | lldb.eTypeOptionSkipPointers
            hidden = lldb.eTypeOptionHideValue | (0 if kind.has_children else lldb.eTypeOptionHideChildren)
            category.AddTypeSummary(specifier, lldb.SBTypeSummary.CreateWithFunctionName(summary, options | hidden))
            if kind.has_children:
                category.AddTypeSynthetic(specifier, lldb.SBTypeSynthetic.CreateWithClassName(children, options))
        category.SetEnabled(True)

    def remove(self) -> None:
        self._selection.debugger.DeleteCategory(CATEGORY)

    def _text_of(self, value: lldb.SBValue, _: dict[str, object]) -> str:
        """Called by LLDB for each value of these types that it shows."""
        summary = self.summary_of(value.GetNonSyntheticValue())
        return summary.text if summary else ""

    def summary_of(self, value: lldb.SBValue) -> TypeSummary | None:
        """The value's summary; None without one, for another process, or while another thread runs our commands."""
        if value.GetProcess().GetUniqueID() != self._selection.process().GetUniqueID():
            return None
        cpp_object = _cpp_object(value)
        with self._selection.session_if_free() as is_free:
            return self._source.summary_of(cpp_object) if cpp_object and is_free else None


def _cpp_object(value: lldb.SBValue) -> CppObject | None:
    """The value for ``SummarySource``: its type, address or bytes, and element type; None if LLDB has neither address
    nor bytes."""
    kind = _plain_type(value)
    element = _template_argument(kind)
    is_reference = value.GetType().IsReferenceType()
    address, raw = int(value.GetValueAsUnsigned() if is_reference else value.GetLoadAddress()), b""
    if address == lldb.LLDB_INVALID_ADDRESS:  # in registers
        address, data, error = 0, value.GetData(), lldb.SBError()
        size = data.GetByteSize()
        contents = data.ReadRawData(error, 0, size) if size else None
        raw = bytes(contents) if contents is not None and error.Success() else b""
    if not address and not raw:
        return None
    name, size = (_unqualified(element).GetName(), element.GetByteSize()) if element.IsValid() else ("", 0)
    return CppObject(kind.GetName(), address, raw, name, size)


def _plain_type(value: lldb.SBValue) -> lldb.SBType:
    """The type of a value, without reference, typedefs and qualifiers."""
    kind = _unqualified(value.GetType())
    return _unqualified(kind.GetDereferencedType()) if kind.IsReferenceType() else kind


def _unqualified(kind: lldb.SBType) -> lldb.SBType:
    """The type without typedefs and qualifiers."""
    return kind.GetCanonicalType().GetUnqualifiedType()


def _template_argument(kind: lldb.SBType) -> lldb.SBType:
    """The first template argument; an invalid type if it has none."""
    return kind.GetTemplateArgumentType(0) if kind.GetNumberOfTemplateArguments() else lldb.SBType()


def _parts(value: lldb.SBValue, summary: TypeSummary) -> Iterator[lldb.SBValue]:
    """The parts of a value; those of a map are its values, with the keys as names."""
    if summary.shape != "map":
        for child in summary.children:
            yield _part(value, child.name, child)
        return
    for key, mapped in zip(summary.children[::2], summary.children[1::2]):
        yield _part(value, f"[{key.text}]", mapped)


def _part(value: lldb.SBValue, name: str, child: Child) -> lldb.SBValue:
    """A part under a name: a value if LLDB has its type, else text."""
    if child.type and child.address:
        kind = _template_argument(_plain_type(value))
        if not kind.IsValid() or _unqualified(kind).GetName() != child.type:
            kind = value.GetTarget().FindFirstType(child.type)
        if kind.IsValid() and kind.GetByteSize():
            return value.CreateValueFromAddress(name, child.address, kind)
    target = value.GetTarget()
    text = child.text.encode("utf-8", "backslashreplace") + b"\0"
    error = lldb.SBError()
    data = lldb.SBData()
    data.SetData(error, text, target.GetByteOrder(), target.GetAddressByteSize())
    return value.CreateValueFromData(name, data, target.GetBasicType(lldb.eBasicTypeChar).GetArrayType(len(text)))
