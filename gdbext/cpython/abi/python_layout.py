"""Offsets inside CPython's structures for one minor version, from generated tables and from the target itself.

Three sources, the best last: ``unpublished.py`` (types that exist only in a .c file), the generated tables
``layouts/data/cpython-3.X.json`` (made from the headers of that version), and the ``_Py_DebugOffsets`` of versions
that publish them at the start of ``_PyRuntime``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gdbext.cpython.abi.python_abi import PythonAbi
from gdbext.cpython.abi.unpublished import HEADER, HEADLESS, UNPUBLISHED
from gdbext.errors import LayoutError
from gdbext.layouts import store
from gdbext.layouts.layout import Layout


class PythonLayout:
    """Where the fields of CPython's structures are: ``offset("PyThreadState", "interp")``, in bytes.

    Structures go by the names of their typedefs. A field of a nested struct is named by its path ("ceval.gil").
    """

    def __init__(self, abi: PythonAbi, table: Layout, overrides: Mapping[tuple[str, str], int] | None = None) -> None:
        self.abi = abi
        self.table = table
        self._known: dict[tuple[str, str], int | None] = dict(overrides or {})

    def offset(self, struct: str, field: str) -> int:
        """Bytes from the start of ``struct`` to ``field``. Raises LayoutError naming what is missing."""
        found = self.find(struct, field)
        if found is None:
            raise LayoutError(f"the layout of CPython {self.abi.text} has no {struct}.{field}")
        return found

    def find(self, struct: str, field: str) -> int | None:
        """Like offset(), but None where this version has no such field."""
        key = struct, field
        if key not in self._known:
            self._known[key] = self._look_up(struct, field)
        return self._known[key]

    def _look_up(self, struct: str, field: str) -> int | None:
        if self.table.has_struct(struct):
            member = self.table.struct(struct).fields.get(field)
            return member.offset if member is not None else None
        entry = UNPUBLISHED.get(struct)
        stated = entry[1].get(field) if entry is not None else None
        return stated + self._wider_header(struct) if stated is not None else None

    def size(self, struct: str) -> int:
        """sizeof(struct) in bytes. Raises LayoutError."""
        if not self.table.has_struct(struct) and struct in UNPUBLISHED:
            return UNPUBLISHED[struct][0] + self._wider_header(struct)
        return self.table.struct(struct).size

    def _wider_header(self, struct: str) -> int:
        """By how much an object's header is larger than in a build with the GIL, for which UNPUBLISHED was written."""
        return 0 if struct in HEADLESS else self.table.struct("PyObject").size - HEADER

    def nested(self, struct: str, member: str, field: str) -> int:
        """Offset of ``field`` inside the struct that ``member`` holds by value. Raises LayoutError."""
        return self.offset(struct, f"{member}.{field}") - self.offset(struct, member)

    def with_overrides(self, overrides: Mapping[tuple[str, str], int]) -> PythonLayout:
        """The same layout where ``overrides`` (what the target says of itself) win over the tables."""
        return PythonLayout(self.abi, self.table, overrides)


@cache
def layout_for(abi: PythonAbi) -> PythonLayout:
    """The shipped layout of a version. Raises LayoutError where its table is missing."""
    return PythonLayout(abi, store.load(table_path(abi)))


def table_path(abi: PythonAbi) -> Path:
    """The shipped table's file."""
    return store.DATA / f"cpython-{abi.text}.json"
