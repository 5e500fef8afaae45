"""Checks layout documents, before anything from a file is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from gdbext.errors import LayoutError

SCHEMA = "gdbext-layout/1"
_NUMBERS = range(-(1 << 63), 1 << 64)  # numbers that fit in a word of the target, with or without a sign

KINDS = ("torch", "cpython")  # kinds of layouts of which there are many


def check(document: Any, where: str) -> None:
    """Check the shape of a document, cheaply enough for every start. ``where`` names the file. Raises LayoutError."""
    if not isinstance(document, dict):
        raise unusable(where, "it is not a JSON object")
    if document.get("schema") != SCHEMA:
        raise unusable(where, f"its schema is {document.get('schema')!r}, not {SCHEMA!r}")
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise unusable(where, f"its kind is {kind!r}")
    if not isinstance(document.get("id"), str) or not document["id"]:
        raise unusable(where, "it has no id")
    for section in ("provenance", "build_ids", "structs", "enums", "constants"):
        if not isinstance(document.get(section), Mapping):
            raise unusable(where, f"it has no section {section!r}")
    for key in ("producer", "version", "git", "compiler", "wheel", "date"):
        if not isinstance(document["provenance"].get(key), str):
            raise unusable(where, f"its provenance does not say {key!r}")
    absent = document.get("absent", [])
    if not isinstance(absent, list):
        raise unusable(where, "its list of what is absent is not a list")
    texts = [("a build-id", value) for value in document["build_ids"].values()]
    for what, value in (*texts, *(("something absent", value) for value in absent)):
        if not isinstance(value, str):
            raise unusable(where, f"{what} is {value!r}, not a text")
    if kind == "torch":
        _check_keys(document, where)


def check_all(document: Any, where: str) -> None:
    """Check a document, and each of its structures, enumerations and constants. Raises LayoutError."""
    check(document, where)
    for section in ("structs", "enums", "constants", "dispatch"):
        for name, value in document.get(section, {}).items():
            check_part(section, name, value, where)


def check_part(section: str, name: str, value: Any, where: str) -> None:
    """Check one entry of a section: each of its members has the type that readers expect. Raises LayoutError."""
    if section == "structs":
        _check_struct(name, value, where)
    elif section == "enums":
        if not _is_map(value, _integer):
            raise unusable(where, f"enumeration {name} has a value that is not an integer")
    elif section == "constants":
        if not _integer(value):
            raise unusable(where, f"constant {name} is not an integer")
    elif name in _DISPATCH and not _DISPATCH[name](value):
        raise unusable(where, f"{name} of its section 'dispatch' is not what it must be")


def _check_struct(name: str, entry: Any, where: str) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("fields"), dict):
        raise unusable(where, f"it lacks {name}")
    size = entry.get("size", 0)
    if not _integer(size) or not 0 < size <= 1 << 24 or len(entry["fields"]) > 4096:
        raise unusable(where, f"the size of {name} is {size!r}")
    for field, at in entry["fields"].items():
        if _is_sound(at, size):
            continue
        if not isinstance(at, dict) or not _integer(at.get("offset")) or not _integer(at.get("size")):
            raise unusable(where, f"{name}.{field} has no offset or size")
        if at["offset"] < 0 or at["size"] < 0 or at["offset"] + at["size"] > size:
            raise unusable(where, f"{name}.{field} does not lie inside {name} ({size} bytes)")
        if not isinstance(at.get("type"), str):
            raise unusable(where, f"{name}.{field} has no type")
        first, bits = at.get("bit_offset", 0), at.get("bit_size", 0)
        if not _integer(first) or not _integer(bits) or bits < 0 or (bits and not 0 <= first <= 8 * size - bits):
            raise unusable(where, f"the bits of {name}.{field} do not lie inside {name}")


def _is_sound(member: Any, size: int) -> bool:
    """A fast test that nearly all members pass; _check_struct examines the others."""
    if type(member) is not dict or "bit_size" in member or "bit_offset" in member:
        return False
    offset, length = member.get("offset"), member.get("size")
    if type(offset) is not int or type(length) is not int or type(member.get("type")) is not str:
        return False
    return 0 <= offset <= offset + length <= size


def _check_keys(document: Mapping[str, Any], where: str) -> None:
    """Check that the key names and the tables of a torch layout agree. Raises LayoutError."""
    dispatch = document.get("dispatch")
    if not isinstance(dispatch, Mapping):
        raise unusable(where, "it has no section 'dispatch'")
    for name in ("key_names", "backend_names", "offsets_and_masks", "table_index"):  # without them no keyset is read
        check_part("dispatch", name, dispatch.get(name), where)
    keys = document["enums"].get("c10::DispatchKey")
    names = dispatch["key_names"]
    if not isinstance(keys, dict) or not keys or not all(_integer(value) for value in keys.values()):
        raise unusable(where, "it has no enumeration of dispatch keys")
    if len(names) != 1 + max(keys.values()) or len(dispatch["table_index"]) > len(names):
        raise unusable(where, "its key names do not fit its enumeration of keys")
    if len(dispatch["offsets_and_masks"]) != document["constants"].get("num_functionality_keys"):
        raise unusable(where, "its offsets and masks do not fit its number of functionalities")


_Check = Callable[[Any], bool]


def _list_of(fits: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_map(value: Any, fits: _Check) -> bool:
    return isinstance(value, dict) and all(map(fits, value.values()))


def _pair_of(first: _Check, second: _Check) -> _Check:
    return lambda value: isinstance(value, list) and len(value) == 2 and first(value[0]) and second(value[1])


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _small(value: Any) -> bool:
    return _integer(value) and 0 <= value < 65536


def _integer(value: Any) -> bool:
    # JSON's true is an int to Python.
    return isinstance(value, int) and not isinstance(value, bool) and value in _NUMBERS


_DISPATCH: Mapping[str, _Check] = {
    **dict.fromkeys(("key_names", "backend_names"), _list_of(_text)),
    **dict.fromkeys(("table_index", "backend_keys", "autograd_of_backend", "autocast_of_backend"), _list_of(_integer)),
    **dict.fromkeys(("runtime_keysets", "backends_of_autograd"), lambda value: _is_map(value, _integer)),
    "offsets_and_masks": _list_of(_pair_of(_small, _small)),
    "scalar_types": _list_of(_pair_of(_text, _small)),
}
"""The check of each member of the section "dispatch" (see Layout.dispatch)."""


def unusable(where: str, what: str) -> LayoutError:
    """The error for a layout; ``what`` is wrong with it."""
    return LayoutError(
        f"{where} is not a usable layout: {what}",
        why="the file is damaged, or was written by another version of gdbext",
        help="delete it if it lies in a cache folder, else make it again: "
        "scripts/dispatch measure /path/to/site-packages/torch",
    )
