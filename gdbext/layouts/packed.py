"""Layouts of many releases in little space: what several have in common is there once.

A release's own file (schema "gdbext-layout/2") has its identity and, under "parts", numbers of lines in ``SHARED``
beside it. Each of those is a JSON array: the section, the name, the value. In a structure a member is an array, too:
offset, size, type; for a bit-field its bit offset and size; and the base class that it comes from. A report needs a
handful of the 150 structures, and only these are parsed. A file of this schema without "parts" (CPython's) shares
nothing, and has its structures in the same short form.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gdbext.errors import LayoutError

SCHEMA = "gdbext-layout/2"
SHARED = "parts-torch.json"
SECTIONS = ("structs", "enums", "constants", "dispatch")
_LIMIT = 16 << 20


class Section(Mapping[str, Any]):
    """One section of a layout document: each value is parsed when it is first asked for."""

    def __init__(self, lines: Mapping[str, bytes], where: str) -> None:
        self._lines = lines
        self._where = where
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """The value. Raises KeyError, LayoutError (it is damaged)."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = self._parse(self._lines[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def _parse(self, line: bytes) -> Any:
        try:
            section, _, value = json.loads(line)
            return expanded(value) if section == "structs" else value
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise LayoutError(f"a part of {self._where} is damaged: {line[:80]!r}") from error


def unpack(head: Mapping[str, Any], path: Path, schema: str) -> dict[str, Any]:
    """The layout document (of ``schema``) that the file at ``path`` is the ``head`` of. Raises LayoutError."""
    if "parts" not in head:
        return {**head, "schema": schema, "structs": _alone(head, path)}
    lines = _lines(path.parent / SHARED)
    numbers = head.get("parts")
    if not isinstance(numbers, list) or not all(isinstance(n, int) and 0 < n < len(lines) for n in numbers):
        raise LayoutError(f"{path} refers to parts that {SHARED} does not have")
    chosen = [lines[number].rstrip(b",") for number in numbers]
    if checksum(chosen) != head.get("crc32"):
        raise LayoutError(f"{path} and {SHARED} beside it do not belong together")
    sections = {name: Section(parts, str(path)) for name, parts in _by_section(chosen, path).items()}
    identity = {key: value for key, value in head.items() if key not in ("parts", "crc32")}
    return {**identity, "schema": schema, **sections}


def _alone(head: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The structures of a file that shares nothing. Raises LayoutError."""
    try:
        return {name: expanded(stored) for name, stored in head["structs"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LayoutError(f"a structure in {path} is damaged") from error


def _by_section(lines: list[bytes], path: Path) -> dict[str, dict[str, bytes]]:
    """Line by section and name, without parsing it: the two come first, and need no escapes."""
    found: dict[str, dict[str, bytes]] = {name: {} for name in SECTIONS}
    try:
        for line in lines:
            _, section, _, name, _ = line.split(b'"', 4)
            found[section.decode()][name.decode()] = line
    except (ValueError, KeyError) as error:
        raise LayoutError(f"{SHARED} beside {path} is damaged") from error
    return found


def _lines(path: Path) -> list[bytes]:
    """The lines of the shared file, by number; the first is number 0 and the opening bracket."""
    try:
        with path.open("rb") as stream:
            return stream.read(_LIMIT).split(b"\n")
    except OSError as error:
        raise LayoutError(f"cannot read {path}: {error.strerror}") from error


def checksum(lines: list[bytes]) -> int:
    """What proves that a release's file and the shared one were written together."""
    return zlib.crc32(b"\n".join(lines))


def compact(struct: Mapping[str, Any]) -> list[Any]:
    """An entry of "structs" as it is stored."""
    return [struct["size"], {name: _short(field) for name, field in struct["fields"].items()}]


def alone(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document as it is stored where it shares nothing."""
    structs = {name: compact(struct) for name, struct in document["structs"].items()}
    return {**document, "schema": SCHEMA, "structs": structs}


def expanded(stored: Any) -> dict[str, Any]:
    """The reverse of ``compact``. Raises TypeError, KeyError and their like where it cannot be."""
    size, fields = stored
    return {"size": size, "fields": {name: _long(*field) for name, field in fields.items()}}


def _short(field: Mapping[str, Any]) -> list[Any]:
    short = [field["offset"], field["size"], field["type"]]
    if "bit_size" in field or "base" in field:
        short += [field.get("bit_offset", 0), field.get("bit_size", 0)]
    return [*short, field["base"]] if "base" in field else short


def _long(offset: Any, size: Any, kind: Any, bit_offset: Any = 0, bit_size: Any = 0, base: Any = "") -> dict[str, Any]:
    field = {"offset": offset, "size": size, "type": kind}
    if bit_size:
        field.update(bit_offset=bit_offset, bit_size=bit_size)
    if base:
        field["base"] = base
    return field
