"""Checks of a layout document: nothing that comes from a file is believed before it has passed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gdbext.errors import LayoutError

SCHEMA = "gdbext-layout/1"
_SECTIONS = {"provenance": Mapping, "build_ids": Mapping, "structs": Mapping, "enums": Mapping, "constants": Mapping}
_PROVENANCE = ("producer", "version", "git", "compiler", "wheel", "date")
_MAX_SIZE = 1 << 24
_MAX_FIELDS = 4096

REQUIRED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "torch": {
        "c10::Dispatcher": ("operators_", "backendFallbackKernels_"),
        "c10::Dispatcher::OperatorDef": ("op",),
        "c10::impl::OperatorEntry": ("name_", "schema_", "dispatchTable_", "dispatchKeyExtractor_", "kernels_"),
        "c10::KernelFunction": ("boxed_kernel_func_", "unboxed_kernel_func_"),
        "c10::BoxedKernel": ("functor_", "boxed_kernel_func_"),
        "c10::OperatorName": ("name", "overload_name"),
        "c10::OperatorHandle": ("operatorDef_",),
        "std::string": ("_M_dataplus._M_p",),
    },
    "cpython": {"PyObject": ("ob_type",), "PyThreadState": ("interp",)},
}
"""Without these members nothing can be said about a dispatcher, or about an interpreter."""


def check(document: Any, where: str) -> None:
    """The shape of a document, cheap enough for every start. ``where`` names the file. Raises LayoutError."""
    if not isinstance(document, dict):
        raise _bad(where, "it is not a JSON object")
    if document.get("schema") != SCHEMA:
        raise _bad(where, f"its schema is {document.get('schema')!r}, not {SCHEMA!r}")
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in REQUIRED:
        raise _bad(where, f"its kind is {kind!r}")
    if not isinstance(document.get("id"), str) or not document["id"]:
        raise _bad(where, "it has no id")
    for section, kind_of in _SECTIONS.items():
        if not isinstance(document.get(section), kind_of):
            raise _bad(where, f"it has no section {section!r}")
    for key in _PROVENANCE:
        if not isinstance(document["provenance"].get(key), str):
            raise _bad(where, f"its provenance does not say {key!r}")
    _check_texts(document["build_ids"].values(), "a build-id", where)
    absent = document.get("absent", [])
    if not isinstance(absent, list):
        raise _bad(where, "its list of what is absent is not a list")
    _check_texts(absent, "something absent", where)
    for name, members in REQUIRED[kind].items():
        _check_struct(name, document["structs"].get(name), where)
        for member in members:
            if member not in document["structs"][name]["fields"]:
                raise _bad(where, f"{name} has no member {member}")
    if kind == "torch":
        _check_table(document, where)


def check_all(document: Any, where: str) -> None:
    """``check``, and every structure, enumeration and constant as well. Raises LayoutError."""
    check(document, where)
    for name, entry in document["structs"].items():
        _check_struct(name, entry, where)
    for name, values in document["enums"].items():
        if not isinstance(values, dict) or not all(_integer(v) for v in values.values()):
            raise _bad(where, f"enumeration {name} has a value that is not an integer")
    for name, value in document["constants"].items():
        if not _integer(value):
            raise _bad(where, f"constant {name} is not an integer")


def _check_texts(values: Iterable[Any], what: str, where: str) -> None:
    for value in values:
        if not isinstance(value, str):
            raise _bad(where, f"{what} is {value!r}, not a text")


def _check_struct(name: str, entry: Any, where: str) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("fields"), dict):
        raise _bad(where, f"it lacks {name}")
    size = entry.get("size", 0)
    if not _integer(size) or not 0 < size <= _MAX_SIZE or len(entry["fields"]) > _MAX_FIELDS:
        raise _bad(where, f"the size of {name} is {size!r}")
    for field, at in entry["fields"].items():
        if not isinstance(at, dict) or not _integer(at.get("offset")) or not _integer(at.get("size")):
            raise _bad(where, f"{name}.{field} has no offset or size")
        if at["offset"] < 0 or at["size"] < 0 or at["offset"] + at["size"] > size:
            raise _bad(where, f"{name}.{field} does not lie inside {name} ({size} bytes)")
        if not isinstance(at.get("type"), str):
            raise _bad(where, f"{name}.{field} has no type")
        first, bits = at.get("bit_offset", 0), at.get("bit_size", 0)
        if not _integer(first) or not _integer(bits) or bits < 0 or (bits and not 0 <= first <= 8 * size - bits):
            raise _bad(where, f"the bits of {name}.{field} do not lie inside {name}")


def _check_table(document: Mapping[str, Any], where: str) -> None:
    """The dispatch table's size, the key names and the offsets must agree with each other."""
    dispatch = document.get("dispatch")
    if not isinstance(dispatch, Mapping):
        raise _bad(where, "it has no section 'dispatch'")
    count = document["constants"].get("num_runtime_entries")
    structs = document["structs"]
    table = structs["c10::impl::OperatorEntry"]["fields"]["dispatchTable_"]["size"]
    if not _integer(count) or count * structs["c10::KernelFunction"]["size"] != table:
        raise _bad(where, f"{count} runtime entries do not make a dispatch table of {table} bytes")
    keys = document["enums"].get("c10::DispatchKey")
    names = dispatch.get("key_names")
    if not isinstance(keys, dict) or not keys or not all(_integer(value) for value in keys.values()):
        raise _bad(where, "it has no enumeration of dispatch keys")
    if not isinstance(names, list) or len(names) != 1 + max(keys.values()):
        raise _bad(where, "its key names do not fit its enumeration of keys")
    offsets = dispatch.get("offsets_and_masks")
    if not isinstance(offsets, list) or len(offsets) != document["constants"].get("num_functionality_keys"):
        raise _bad(where, "its offsets and masks do not fit its number of functionalities")
    _check_texts(names, "a key's name", where)
    backends = dispatch.get("backend_names")
    if not isinstance(backends, list):
        raise _bad(where, "it has no names of backends")
    _check_texts(backends, "a backend's name", where)
    for pair in offsets:
        if not isinstance(pair, list) or len(pair) != 2 or not all(_integer(n) and 0 <= n < 65536 for n in pair):
            raise _bad(where, f"{pair!r} is not an offset and a mask")


def _integer(value: Any) -> bool:
    # JSON's true is an int to Python.
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(where: str, what: str) -> LayoutError:
    return LayoutError(
        f"{where} is not a usable layout: {what}",
        why="the file is damaged, or was written by another version of gdbext",
        help="delete it if it lies in a cache folder, else make it again: "
        "scripts/gen_layouts.py --torch /path/to/site-packages/torch",
    )
