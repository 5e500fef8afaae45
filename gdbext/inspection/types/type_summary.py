"""TypeSummary: a C++ object in one line, and the parts of it that are worth showing."""

from __future__ import annotations

from gdbext.model.record import Record


class Child(Record):
    """One part. Where ``type`` and ``address`` are given and the debugger knows that type, it shows the object there
    in its own way, else ``text``."""

    name: str
    text: str
    type: str = ""
    address: int = 0


class TypeSummary(Record):
    """``shape`` is "array" or "map" (children are keys and values in turn) where the children are elements, else ""."""

    text: str
    children: tuple[Child, ...] = ()
    shape: str = ""
