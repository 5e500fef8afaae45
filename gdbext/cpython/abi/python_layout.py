"""Offsets inside CPython's structures for one minor version, from generated tables and from the target itself.

Three sources, the best last: ``unpublished.py`` (types that exist only in a .c file), the generated tables
``layouts/data/cpython-3.X.json`` (made from the headers of that version), and for 3.13 and later the
``_Py_DebugOffsets`` that the target publishes at the start of ``_PyRuntime`` (Include/internal/pycore_runtime.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gdbext import layouts
from gdbext.cpython.abi.unpublished import UNPUBLISHED
from gdbext.errors import LayoutError, PythonUnsupported
from gdbext.layouts import store
from gdbext.layouts.layout import Layout

SUPPORTED = ((3, 8), (3, 9), (3, 10), (3, 11), (3, 12), (3, 13))
"""Minor versions with a table."""


class PythonLayout:
    """Where the fields of CPython's structures are: ``offset("PyThreadState", "interp")``, in bytes.

    Structures go by the names of their typedefs. A field of a nested struct is named by its path ("ceval.gil").
    """

    def __init__(
        self, version: tuple[int, int], table: Layout, overrides: Mapping[tuple[str, str], int] | None = None
    ) -> None:
        self.version = version
        self.table = table
        self._known: dict[tuple[str, str], int | None] = dict(overrides or {})

    def offset(self, struct: str, field: str) -> int:
        """Bytes from the start of ``struct`` to ``field``. Raises LayoutError naming what is missing."""
        found = self.find(struct, field)
        if found is None:
            raise LayoutError(f"the layout of CPython {self.text} has no {struct}.{field}")
        return found

    def find(self, struct: str, field: str) -> int | None:
        """Like offset(), but None where this version has no such field."""
        key = struct, field
        if key not in self._known:
            self._known[key] = self._look_up(struct, field)
        return self._known[key]

    def _look_up(self, struct: str, field: str) -> int | None:
        if self.table.has_struct(struct):
            found = self.table.struct(struct).fields.get(field)
            return found.offset if found is not None else None
        entry = UNPUBLISHED.get(struct)
        return entry[1].get(field) if entry is not None else None

    def size(self, struct: str) -> int:
        """sizeof(struct) in bytes. Raises LayoutError."""
        if not self.table.has_struct(struct) and struct in UNPUBLISHED:
            return UNPUBLISHED[struct][0]
        return self.table.struct(struct).size

    def nested(self, struct: str, member: str, field: str) -> int:
        """Offset of ``field`` inside the struct that ``member`` holds by value. Raises LayoutError."""
        return self.offset(struct, f"{member}.{field}") - self.offset(struct, member)

    @property
    def text(self) -> str:
        """The minor version, "3.11"."""
        return "{}.{}".format(*self.version)

    def with_overrides(self, overrides: Mapping[tuple[str, str], int]) -> PythonLayout:
        """The same layout where ``overrides`` (what the target says of itself) win over the tables."""
        return PythonLayout(self.version, self.table, overrides)


_cache: dict[tuple[int, int], PythonLayout] = {}


def layout_for(version: tuple[int, int]) -> PythonLayout:
    """The shipped layout of a minor version. Raises PythonUnsupported (unknown version), LayoutError (no table)."""
    if version not in SUPPORTED:
        raise PythonUnsupported("CPython {}.{} is not supported".format(*version))
    if version not in _cache:
        _cache[version] = PythonLayout(version, store.load(table_path(version)))
    return _cache[version]


def table_path(version: tuple[int, int]) -> Path:
    """The shipped table's file."""
    return Path(layouts.__file__).parent / "data" / "cpython-{}.{}.json".format(*version)
