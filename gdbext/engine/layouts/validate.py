"""Checks layout documents, before anything from a file is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from gdbext.errors import LayoutError

SCHEMA = "gdbext-layout/1"
KINDS = ("torch", "cpython")  # kinds of layouts of which there are many
_SECTIONS = ("structs", "enums", "constants")
_NUMBERS = range(-(1 << 63), 1 << 64)  # numbers that fit in a word of the target, with or without a sign

_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    # JSON's true is an int to Python.
    return isinstance(value, int) and not isinstance(value, bool) and value in _NUMBERS


def _is_small(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < 65536


def _list_of(is_item: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(is_item, value))


def _map_to(is_item: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(is_item, value.values()))


def _pair_of(is_first: _Check, is_second: _Check) -> _Check:
    return lambda value: isinstance(value, list) and len(value) == 2 and is_first(value[0]) and is_second(value[1])


_DISPATCH: Mapping[str, _Check] = {
    **dict.fromkeys(("key_names", "backend_names"), _list_of(_is_text)),
    **dict.fromkeys(("table_index", "backend_keys"), _list_of(_is_integer)),
    **dict.fromkeys(("autograd_of_backend", "autocast_of_backend"), _list_of(_is_integer)),
    **dict.fromkeys(("runtime_keysets", "backends_of_autograd"), _map_to(_is_integer)),
    "offsets_and_masks": _list_of(_pair_of(_is_small, _is_small)),
    "scalar_types": _list_of(_pair_of(_is_text, _is_small)),
}
"""The check of each member of the section "dispatch" (see Layout.dispatch)."""


def check(document: Any, where: str) -> None:
    """Check the shape of a document, cheaply enough for every start. ``where`` names the file. Raises LayoutError."""
    if not isinstance(document, dict):
        raise unusable(where, "it is not a JSON object")
    if document.get("schema") != SCHEMA:
        raise unusable(where, f"its schema is {document.get('schema')!r}, not {SCHEMA!r}")
    if document.get("kind") not in KINDS:
        raise unusable(where, f"its kind is {document.get('kind')!r}")
    if not document.get("id") or not _is_text(document["id"]):
        raise unusable(where, "it has no id")
    for section in ("provenance", "build_ids", *_SECTIONS):
        if not isinstance(document.get(section), Mapping):
            raise unusable(where, f"it has no section {section!r}")
    for key in ("producer", "version", "git", "compiler", "wheel", "date"):
        if not _is_text(document["provenance"].get(key)):
            raise unusable(where, f"its provenance does not say {key!r}")
    if not _list_of(_is_text)(document.get("absent", [])):
        raise unusable(where, "its list of what is absent is not a list of texts")
    if not _map_to(_is_text)(document["build_ids"]):
        raise unusable(where, "one of its build-ids is not a text")
    if document["kind"] == "torch":
        _check_keys(document, where)


def check_all(document: Any, where: str) -> None:
    """Check a document, and each of its structures, enumerations and constants. Raises LayoutError."""
    check(document, where)
    for section in (*_SECTIONS, "dispatch"):
        for name, value in document.get(section, {}).items():
            check_part(section, name, value, where)


def check_part(section: str, name: str, value: Any, where: str) -> None:
    """Check one entry of a section: each of its members has the type that readers expect. Raises LayoutError."""
    if section == "structs":
        _check_struct(name, value, where)
    elif section == "enums":
        if not _map_to(_is_integer)(value):
            raise unusable(where, f"enumeration {name} has a value that is not an integer")
    elif section == "constants":
        if not _is_integer(value):
            raise unusable(where, f"constant {name} is not an integer")
    elif name in _DISPATCH and not _DISPATCH[name](value):
        raise unusable(where, f"{name} of its section 'dispatch' has a wrong type")


def _check_struct(name: str, entry: Any, where: str) -> None:
    """Check that all members of the structure ``name`` lie inside it. Raises LayoutError."""
    if not isinstance(entry, dict) or not isinstance(entry.get("fields"), dict):
        raise unusable(where, f"it lacks {name}")
    size = entry.get("size", 0)
    if not _is_integer(size) or not 0 < size <= 1 << 24 or len(entry["fields"]) > 4096:
        raise unusable(where, f"the size of {name} is {size!r}")
    for field, at in entry["fields"].items():
        if not isinstance(at, dict) or not _is_integer(at.get("offset")) or not _is_integer(at.get("size")):
            raise unusable(where, f"{name}.{field} has no offset or size")
        if not 0 <= at["offset"] <= at["offset"] + at["size"] <= size:
            raise unusable(where, f"{name}.{field} does not lie inside {name} ({size} bytes)")
        if not _is_text(at.get("type")):
            raise unusable(where, f"{name}.{field} has no type")
        first, bits = at.get("bit_offset", 0), at.get("bit_size", 0)
        if not _is_integer(first) or not _is_integer(bits) or bits < 0 or (bits and not 0 <= first <= 8 * size - bits):
            raise unusable(where, f"the bits of {name}.{field} do not lie inside {name}")


def _check_keys(document: Mapping[str, Any], where: str) -> None:
    """Check that the key names and the tables of a torch layout agree. Raises LayoutError."""
    dispatch = document.get("dispatch")
    if not isinstance(dispatch, Mapping):
        raise unusable(where, "it has no section 'dispatch'")
    for name in ("key_names", "backend_names", "offsets_and_masks", "table_index"):  # without them no keyset is read
        check_part("dispatch", name, dispatch.get(name), where)
    keys, names = document["enums"].get("c10::DispatchKey"), dispatch["key_names"]
    if not keys or not _map_to(_is_integer)(keys):
        raise unusable(where, "it has no enumeration of dispatch keys")
    if len(names) != 1 + max(keys.values()) or len(dispatch["table_index"]) > len(names):
        raise unusable(where, "its key names do not fit its enumeration of keys")
    if len(dispatch["offsets_and_masks"]) != document["constants"].get("num_functionality_keys"):
        raise unusable(where, "its offsets and masks do not fit its number of functionalities")


def unusable(where: str, what: str) -> LayoutError:
    """The error for the layout in the file ``where``; ``what`` is wrong with it."""
    return LayoutError(
        f"{where} is not a usable layout: {what}",
        why="the file is damaged, or was written by another version of gdbext",
        help="delete it if it lies in a cache folder, else make it again: "
        "scripts/dispatch measure /path/to/site-packages/torch",
    )
