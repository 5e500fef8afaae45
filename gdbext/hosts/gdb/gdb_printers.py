"""gdb's pretty-printers for C++ types of PyTorch, for code that has debug information.

They are registered with each object file that has any: a release wheel has none, the user's own extension may. Only
names, sizes and addresses of values come from gdb; what is in them is read by inspection/types.

Expressions in gdb's language are evaluated without any effect on the process: nothing is called, nothing written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import gdb
import gdb.printing

from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.errors import GdbextError, UsageError
from gdbext.tools.tensor.cpp_object import SUMMARIZED_TYPES, CppObject, summarized_type

if TYPE_CHECKING:
    from gdbext.tools.tensor.cpp_object import Child, TypeSummary

    Summarize = Callable[[CppObject], TypeSummary | None]

NAME = "gdbext"


class TypePrinter:
    """One type's printer as ``info pretty-printer`` lists it and ``disable pretty-printer`` turns it off."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.enabled = True


class ObjectPrinter:
    """Shows one value. gdb calls the methods."""

    def __init__(self, summary: TypeSummary, element: gdb.Type | None) -> None:
        self._summary = summary
        self._element = element

    def to_string(self) -> str:
        """The summary in one line of text."""
        return self._summary.text

    def display_hint(self) -> str | None:
        """The hint by which gdb writes the children."""
        return self._summary.shape or None

    def children(self) -> Iterator[tuple[str, gdb.Value | str]]:
        """The parts: values where gdb knows their type, else text."""
        for child in self._summary.children:
            yield child.name, self._value(child)

    def _value(self, child: Child) -> gdb.Value | str:
        if not child.type or not child.address:
            return child.text
        try:
            kind = self._type(child.type)
            return gdb.Value(child.address).cast(kind.pointer()).dereference() if _is_complete(kind) else child.text
        except gdb.error:
            return child.text

    def _type(self, name: str) -> gdb.Type:
        if self._element is not None and str(self._element.strip_typedefs()) == name:
            return self._element
        return gdb.lookup_type(name)


class GdbTypePrinters:
    """Finds the printer of a value; the object that gdb keeps for each object file."""

    def __init__(self, summarize: Summarize, shown: Callable[[], None]) -> None:
        """``shown`` is called whenever gdb shows a value."""
        self.name = NAME
        self.enabled = True
        self.subprinters = [TypePrinter(each.name) for each in SUMMARIZED_TYPES]
        self._of_name = {each.name: each for each in self.subprinters}
        self._summarize = summarize
        self._shown = shown

    def __call__(self, value: gdb.Value) -> ObjectPrinter | None:
        """Called by gdb for every value that it shows: None lets it show the value itself."""
        self._shown()
        kind = value.type
        if is_reference(kind):
            kind = kind.target()
        name = kind.strip_typedefs().name
        known = summarized_type(name) if name else None
        if not known or not self._of_name[known.name].enabled:
            return None
        with suppress(gdb.error):  # optimised out, or in memory that cannot be read
            return self._printer(value.referenced_value() if is_reference(value.type) else value)
        return None

    def _printer(self, value: gdb.Value) -> ObjectPrinter | None:
        if value.is_optimized_out:
            return None
        kind = value.type.unqualified().strip_typedefs()
        element, address = _element(kind), address_of(value)
        found = CppObject(
            kind.name,
            address or 0,
            _bytes(value) if address is None else b"",
            str(element.strip_typedefs()) if element is not None else "",
            int(element.sizeof) if element is not None else 0,
        )
        summary = self._summarize(found)
        return ObjectPrinter(summary, element) if summary else None


def _is_complete(kind: gdb.Type) -> bool:
    """False for a class that is only declared, as g++ has those whose first virtual function is in a library."""
    plain = kind.strip_typedefs()
    return plain.code not in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION) or bool(plain.fields())


def _element(kind: gdb.Type) -> gdb.Type | None:
    """The first template argument, where it is a type."""
    if "<" not in kind.name:
        return None
    with suppress(gdb.error, RuntimeError):
        found = kind.template_argument(0)
        return found.unqualified() if isinstance(found, gdb.Type) else None
    return None


def _bytes(value: gdb.Value) -> bytes:
    """The bytes of a value in registers, put together from its members."""
    kind = value.type.strip_typedefs()
    raw = bytearray(int(kind.sizeof))
    _fill(value, kind, raw, 0)
    return bytes(raw)


def _fill(value: gdb.Value, kind: gdb.Type, raw: bytearray, at: int) -> None:
    if kind.code not in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION):
        size = int(kind.sizeof)
        raw[at : at + size] = (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
        return
    for field in kind.fields():
        if hasattr(field, "bitpos") and not field.bitsize:
            member = value[field]
            _fill(member, member.type.strip_typedefs(), raw, at + field.bitpos // 8)


class PrinterRegistration:
    """Gives the printers to the object files, now and when one is loaded.

    They are taken back from those without debug information when a value has been shown: to look into 70 files takes
    12 ms, as long as defining all commands.
    """

    def __init__(self, summarize: Summarize) -> None:
        self._printers = GdbTypePrinters(summarize, self._shown)
        self._unchecked: list[gdb.Objfile] = []
        self._is_asked = False
        for file in gdb.objfiles():
            self._register(file)
        gdb.events.new_objfile.connect(self._loaded)

    def remove(self) -> None:
        """Remove our printers from gdb."""
        with suppress(ValueError):
            gdb.events.new_objfile.disconnect(self._loaded)
        self._forget_prompt()
        for file in gdb.objfiles():
            self._take_back(file)

    def _loaded(self, event: gdb.NewObjFileEvent) -> None:
        self._register(event.new_objfile)

    def _register(self, file: gdb.Objfile) -> None:
        gdb.printing.register_pretty_printer(file, self._printers, replace=True)
        self._unchecked.append(file)

    def _shown(self) -> None:
        """A value is shown: gdb is walking along the lists, so they change with the next prompt only."""
        if self._unchecked and not self._is_asked and hasattr(gdb.events, "before_prompt"):
            self._is_asked = True
            gdb.events.before_prompt.connect(self._check)

    def _check(self) -> None:
        self._forget_prompt()
        while self._unchecked:
            file = self._unchecked.pop()
            if file.is_valid() and not _has_debug_information(file.filename or ""):
                self._take_back(file)

    def _forget_prompt(self) -> None:
        if self._is_asked:
            self._is_asked = False
            gdb.events.before_prompt.disconnect(self._check)

    def _take_back(self, file: gdb.Objfile) -> None:
        file.pretty_printers = [each for each in file.pretty_printers if each is not self._printers]


def _has_debug_information(path: str) -> bool:
    """Also assumed of a file that is not on this machine."""
    try:
        sections = ForeignFiles().image(path).sections
    except (GdbextError, OSError):
        return path.startswith("target:")
    return ".debug_info" in sections or ".zdebug_info" in sections


WORD = (1 << 64) - 1
_REFERENCES = (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF)


def is_reference(kind: gdb.Type) -> bool:
    """True for a reference to an object, lvalue or rvalue."""
    return kind.code in _REFERENCES


def address_of(value: gdb.Value) -> int | None:
    """Address of a value; None where it is not in memory."""
    return int(value.address) & WORD if value.address is not None else None


_CALLS = "may-call-functions"
"""gdb's setting, since gdb 9."""
_WRITES = re.compile(r"(?<![=!<>])=(?!=)|<<=|>>=|\+\+|--")
"""Assignments. gdb's settings against writing cannot be changed while there is a process."""
_NUMBERS = (gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_INT)


def evaluated_address(expression: str) -> int:
    """The value of a pointer or a number, else the address of the object. Raises UsageError in gdb's words."""
    if _WRITES.search(expression):
        raise UsageError(f"{expression!r} would change the process", help="name an object, or a pointer to it")
    try:
        with _without_calls():
            found = _address(gdb.parse_and_eval(expression))
    except gdb.error as error:
        raise UsageError(
            f"{expression!r} is not an address: {error}",
            why="gdb evaluates it in the selected frame; nothing is called in the process, and nothing written",
            help="give an address, $REGISTER, *$REGISTER+8, --py NAME, or select the frame that has the variable",
        ) from error
    if found is None:
        raise UsageError(f"{expression!r} has no address", help="name an object in memory, or a pointer to it")
    return found


def _address(value: gdb.Value) -> int | None:
    if is_reference(value.type.strip_typedefs()):
        value = value.referenced_value()
    if value.type.strip_typedefs().code in _NUMBERS:
        return int(value) & WORD
    return address_of(value)


@contextmanager
def _without_calls() -> Iterator[None]:
    allowed = bool(gdb.parameter(_CALLS))
    try:
        if allowed:
            gdb.execute(f"set {_CALLS} off", False, True)
        yield
    finally:
        if allowed:
            gdb.execute(f"set {_CALLS} on", False, True)
