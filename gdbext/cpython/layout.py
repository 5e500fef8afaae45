"""Offsets inside CPython's structures for one minor version, from generated tables and from the target itself.

Three sources, the best last: ``unpublished.py`` (types that exist only in a .c file), the generated tables
``layouts/data/cpython-3.X.json`` (made from the headers of that version), and for 3.13 and later the
``_Py_DebugOffsets`` that the target publishes at the start of ``_PyRuntime`` (Include/internal/pycore_runtime.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .. import layouts
from ..errors import LayoutError, PythonUnsupported
from .unpublished import UNPUBLISHED

SUPPORTED = ((3, 8), (3, 9), (3, 10), (3, 11), (3, 12), (3, 13))
"""Minor versions with a table."""

_OTHER_NAMES = {
    "_PyRuntimeState": ("pyruntimestate",),
    "PyInterpreterState": ("_is",),
    "PyThreadState": ("_ts",),
    "_PyCFrame": ("CFrame", "_cframe"),
    "PyFrameObject": ("_frame",),
    "PyObject": ("_object",),
    "PyTypeObject": ("_typeobject",),
    "PyHeapTypeObject": ("_heaptypeobject",),
    "PyLongObject": ("_longobject",),
    "PyDictKeysObject": ("_dictkeysobject",),
    "PyDictValues": ("_dictvalues",),
}
"""Other names of a structure: the tag where it differs from the typedef, an older typedef; a table may use any."""

_Key = tuple[str, str]


class PythonLayout:
    """Where the fields of CPython's structures are: ``offset("PyThreadState", "interp")``, in bytes.

    A field of a nested struct is named by its path ("ceval.gil"). Raises LayoutError naming what is missing.
    """

    def __init__(
        self,
        version: tuple[int, int],
        structs: Mapping[str, tuple[int, Mapping[str, int]]],
        overrides: Mapping[_Key, int] | None = None,
    ) -> None:
        self.version = version
        self._structs = structs
        self._overrides = dict(overrides or {})

    def offset(self, struct: str, field: str) -> int:
        """Bytes from the start of ``struct`` to ``field``. Raises LayoutError."""
        found = self.find(struct, field)
        if found is None:
            raise LayoutError(f"the layout of CPython {self.text} has no {struct}.{field}")
        return found

    def find(self, struct: str, field: str) -> int | None:
        """Like offset(), but None where this version has no such field."""
        value = self._overrides.get((struct, field))
        if value is not None:
            return value
        entry = self._structs.get(struct)
        return entry[1].get(field) if entry else None

    def size(self, struct: str) -> int:
        """sizeof(struct) in bytes. Raises LayoutError."""
        entry = self._structs.get(struct)
        if entry is None:
            raise LayoutError(f"the layout of CPython {self.text} has no {struct}")
        return entry[0]

    @property
    def text(self) -> str:
        """The minor version, "3.11"."""
        return "{}.{}".format(*self.version)

    def with_overrides(self, overrides: Mapping[_Key, int]) -> PythonLayout:
        """The same layout where ``overrides`` (what the target says of itself) win over the tables."""
        return PythonLayout(self.version, self._structs, {**self._overrides, **overrides})


_cache: dict[tuple[int, int], PythonLayout] = {}


def layout_for(version: tuple[int, int]) -> PythonLayout:
    """The shipped layout of a minor version. Raises PythonUnsupported (unknown version), LayoutError (no table)."""
    if version not in SUPPORTED:
        raise PythonUnsupported("CPython {}.{} is not supported".format(*version))
    if version not in _cache:
        _cache[version] = _load(version)
    return _cache[version]


def table_path(version: tuple[int, int]) -> Path:
    """The shipped table's file."""
    return Path(layouts.__file__).parent / "data" / "cpython-{}.{}.json".format(*version)


def _load(version: tuple[int, int]) -> PythonLayout:
    """The table of ``version``, with the unpublished structures where the table has none."""
    import json

    path = table_path(version)
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise LayoutError(f"cannot read {path}: {error}") from error
    if document.get("schema") != "gdbext-layout/1" or document.get("kind") != "cpython":
        raise LayoutError(f"{path} is no layout of CPython")
    structs: dict[str, tuple[int, Mapping[str, int]]] = {}
    for name, struct in document["structs"].items():
        fields = {key: field["offset"] for key, field in struct["fields"].items()}
        structs[_plain(name)] = (struct["size"], fields)
    for name, others in _OTHER_NAMES.items():
        known = next((other for other in others if other in structs), None)
        if name not in structs and known is not None:
            structs[name] = structs[known]
    for name, entry in UNPUBLISHED.items():
        structs.setdefault(name, entry)
    return PythonLayout(version, structs)


def _plain(name: str) -> str:
    """ "struct _ts" as "_ts"."""
    return name[len("struct ") :] if name.startswith("struct ") else name
