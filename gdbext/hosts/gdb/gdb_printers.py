"""gdb's pretty-printers for C++ types of PyTorch, and its expressions, evaluated without any effect on the process.

gdb supplies names, sizes and addresses of values, from the debug information of the user's own extensions (a release
wheel has none); tools/tensor/cpp_summaries.py reads their contents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import gdb
import gdb.printing

from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.errors import GdbextError, UsageError
from gdbext.tools.tensor.cpp_object import SUMMARIZED_TYPES, CppObject, summarized_type

if TYPE_CHECKING:
    from gdbext.tools.tensor.cpp_object import Child, TypeSummary

    Summarize = Callable[[CppObject], TypeSummary | None]

WORD = (1 << 64) - 1


class ObjectPrinter:
    """Shows one value. gdb calls the methods."""

    def __init__(self, summary: TypeSummary, element: gdb.Type | None) -> None:
        self._summary = summary
        self._element = element

    def to_string(self) -> str:
        return self._summary.text

    def display_hint(self) -> str | None:
        return self._summary.shape or None

    def children(self) -> Iterator[tuple[str, gdb.Value | str]]:
        """The parts: values if gdb knows their type, else text."""
        for child in self._summary.children:
            yield child.name, self._value(child)

    def _value(self, child: Child) -> gdb.Value | str:
        """The part as gdb's value, or as text if gdb does not have its type."""
        if not child.type or not child.address:
            return child.text
        try:
            kind = self._element
            if kind is None or str(kind.strip_typedefs()) != child.type:
                kind = gdb.lookup_type(child.type)
            plain = kind.strip_typedefs()
            # g++ only declares a class whose first virtual function is in a library
            is_class = plain.code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION)
            if is_class and not plain.fields():
                return child.text
            return gdb.Value(child.address).cast(kind.pointer()).dereference()
        except gdb.error:
            return child.text


class GdbTypePrinters:
    """Finds the printer of a value; gdb keeps this object for each object file."""

    def __init__(self, summarize: Summarize, shown: Callable[[], None]) -> None:
        """``shown`` is called whenever gdb shows a value, ``summarize`` for each value of one of our types."""
        self.name = "gdbext"
        self.enabled = True
        # as ``info pretty-printer`` lists them and ``disable pretty-printer`` turns them off
        self.subprinters = [gdb.printing.SubPrettyPrinter(kind.name) for kind in SUMMARIZED_TYPES]
        self._by_name = {printer.name: printer for printer in self.subprinters}
        self._summarize = summarize
        self._shown = shown

    def __call__(self, value: gdb.Value) -> ObjectPrinter | None:
        """Called by gdb for every value that it shows: None lets it show the value itself."""
        self._shown()
        is_reference = value.type.code in _REFERENCES
        name = (value.type.target() if is_reference else value.type).strip_typedefs().name
        summarized = summarized_type(name) if name else None
        if not summarized or not self._by_name[summarized.name].enabled:
            return None
        with suppress(gdb.error):  # optimized out, or in memory that cannot be read
            return self._printer(value.referenced_value() if is_reference else value)
        return None

    def _printer(self, value: gdb.Value) -> ObjectPrinter | None:
        """The printer with the value's summary; None without one. Raises gdb.error."""
        if value.is_optimized_out:
            return None
        kind = value.type.unqualified().strip_typedefs()
        element, address = _template_argument(kind), address_of(value)
        raw = bytearray(0 if address is not None else int(kind.sizeof))
        if address is None:
            _fill(value, kind, raw, 0)
        shown = CppObject(
            kind.name,
            address or 0,
            bytes(raw),
            str(element.strip_typedefs()) if element is not None else "",
            int(element.sizeof) if element is not None else 0,
        )
        summary = self._summarize(shown)
        return ObjectPrinter(summary, element) if summary else None


def _template_argument(kind: gdb.Type) -> gdb.Type | None:
    """The first template argument, if it is a type."""
    if "<" not in kind.name:
        return None
    with suppress(gdb.error, RuntimeError):
        argument = kind.template_argument(0)
        return argument.unqualified() if isinstance(argument, gdb.Type) else None
    return None


def _fill(value: gdb.Value, kind: gdb.Type, raw: bytearray, start: int) -> None:
    """Write the bytes of a value that is in registers into ``raw``, at ``start``, member by member."""
    if kind.code not in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        size = int(kind.sizeof)
        raw[start : start + size] = (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
        return
    for field in kind.fields():
        if hasattr(field, "bitpos") and not field.bitsize:
            member = value[field]
            _fill(member, member.type.strip_typedefs(), raw, start + field.bitpos // 8)


class PrinterRegistration:
    """Registers the printers with the object files, now and when one is loaded. They are removed from files without
    debug information after a value was shown: to check 70 files takes 12 ms, as long as defining all commands."""

    def __init__(self, summarize: Summarize) -> None:
        self._printers = GdbTypePrinters(summarize, self._on_value_shown)
        self._unchecked: list[gdb.Objfile] = []
        self._cancel_check: Callable[[], None] | None = None
        for file in gdb.objfiles():
            self._register(file)
        gdb.events.new_objfile.connect(self._on_new_objfile)

    def remove(self) -> None:
        with suppress(ValueError):
            gdb.events.new_objfile.disconnect(self._on_new_objfile)
        if self._cancel_check:
            self._cancel_check()
        for file in gdb.objfiles():
            self._remove_from(file)

    def _on_new_objfile(self, event: gdb.NewObjFileEvent) -> None:
        self._register(event.new_objfile)

    def _register(self, file: gdb.Objfile) -> None:
        gdb.printing.register_pretty_printer(file, self._printers, replace=True)
        self._unchecked.append(file)

    def _on_value_shown(self) -> None:
        """Have gdb call ``_check`` before its next prompt: while it shows a value, it iterates over the lists."""
        if self._unchecked and not self._cancel_check:
            self._cancel_check = before_next_prompt(self._check)

    def _check(self) -> None:
        """Called by gdb before a prompt: remove the printers from files without debug information."""
        self._cancel_check = None
        while self._unchecked:
            file = self._unchecked.pop()
            if file.is_valid() and not _has_debug_information(file.filename or ""):
                self._remove_from(file)

    def _remove_from(self, file: gdb.Objfile) -> None:
        file.pretty_printers = [printer for printer in file.pretty_printers if printer is not self._printers]


def before_next_prompt(action: Callable[[], None]) -> Callable[[], None]:
    """Have gdb call a function once, before its next prompt; returns the function that cancels this."""
    events = [gdb.events.before_prompt] if hasattr(gdb.events, "before_prompt") else []

    def call() -> None:
        cancel()
        action()

    def cancel() -> None:
        while events:  # once: gdb 13 raises SystemError for a function that is not connected
            events.pop().disconnect(call)

    for event in events:
        event.connect(call)
    return cancel


def _has_debug_information(path: str) -> bool:
    """True for a file with DWARF, and for one of a remote target, which cannot be read."""
    try:
        sections = ForeignFiles().image(path).sections
    except (GdbextError, OSError):
        return path.startswith("target:")
    return ".debug_info" in sections or ".zdebug_info" in sections


_REFERENCES = (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF)
_CALLS = "may-call-functions"  # gdb's setting, since gdb 9


def address_of(value: gdb.Value) -> int | None:
    """Address of a value; None if it is not in memory."""
    return int(value.address) & WORD if value.address is not None else None


def evaluated_address(expression: str) -> int:
    """Evaluate an expression: the value of a pointer or a number, else the address of the object. Raises UsageError."""
    # gdb's settings against writing cannot be changed while there is a process
    if re.search(r"(?<![=!<>])=(?!=)|<<=|>>=|\+\+|--", expression):
        raise UsageError(f"{expression!r} would change the process", help="name an object, or a pointer to it")
    may_call = bool(gdb.parameter(_CALLS))
    try:
        if may_call:
            gdb.execute(f"set {_CALLS} off", False, True)
        value = gdb.parse_and_eval(expression)
        if value.type.strip_typedefs().code in _REFERENCES:
            value = value.referenced_value()
        is_number = value.type.strip_typedefs().code in (gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_INT)
        address = int(value) & WORD if is_number else address_of(value)
    except gdb.error as error:
        raise UsageError(
            f"{expression!r} is not an address: {error}",
            why="gdb evaluates it in the selected frame; nothing is called in the process, and nothing written",
            help="give an address, $REGISTER, *$REGISTER+8, --py NAME, or select the frame that has the variable",
        ) from error
    finally:
        if may_call:
            gdb.execute(f"set {_CALLS} on", False, True)
    if address is None:
        raise UsageError(f"{expression!r} has no address", help="name an object in memory, or a pointer to it")
    return address
