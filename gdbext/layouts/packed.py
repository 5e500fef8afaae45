"""Layouts of many releases in little space: what several have in common is there once.

A release's own file (schema "gdbext-layout/2") has its identity and, under "parts", numbers of lines in the file beside
it that all layouts of its kind share (``shared_file``). Each of those lines is a JSON array: the section, the name, the
value. That of a structure is its size and the number of a further line, which has its members:

- ``[name, offset, size, type]``, with the bit offset and the bit size after it where it is a bit-field;
- ``[name, offset, size, type, number]``: a structure, whose members are another line's, counted from there;
- ``[offset, base class, number]``: the members of a base class, likewise.

So a class that holds another one which did not change only says where, although all offsets in it have moved. A report
needs a handful of the 150 structures, and only these are parsed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdbext.errors import LayoutError

SCHEMA = "gdbext-layout/2"
KINDS = ("torch", "cpython")
"""Kinds of layouts of which there are many."""
SECTIONS = ("structs", "enums", "constants", "dispatch")
_LIMIT = 16 << 20
_DECODER = json.JSONDecoder()
_OF_BASE, _PLAIN, _HOLDS, _BITS = 3, 4, 5, 6
"""What a member is, by the length of its array."""


class Section(Mapping[str, Any]):
    """One section of a layout document: each value is parsed when it is first asked for."""

    def __init__(self, lines: Mapping[str, str], shared: Sequence[str], where: str) -> None:
        self._lines = lines
        self._shared = shared
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

    def _parse(self, line: str) -> Any:
        try:
            section, _, value = _parsed(line)
            return _expanded(value, self._shared) if section == "structs" else value
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise LayoutError(f"a part of {self._where} is damaged: {line[:80]!r}") from error


def shared_file(kind: str) -> str:
    """The name of the file with the parts of all layouts of one of the ``KINDS``."""
    return f"parts-{kind}.json"


def unpack(head: Mapping[str, Any], path: Path, schema: str) -> dict[str, Any]:
    """The layout document (of ``schema``) that the file at ``path`` is the ``head`` of. Raises LayoutError."""
    if head.get("kind") not in KINDS:
        raise LayoutError(f"{path} is of no kind that shares its parts")
    shared = path.with_name(shared_file(head["kind"]))
    data = _read(shared)
    lines = data.decode(errors="replace").split("\n")
    numbers = head.get("parts")
    if not isinstance(numbers, list) or not all(isinstance(n, int) and 0 < n < len(lines) for n in numbers):
        raise LayoutError(f"{path} refers to parts that {shared.name} does not have")
    if checksum(data) != head.get("crc32"):
        raise LayoutError(f"{path} and {shared.name} beside it do not belong together")
    chosen = _by_section([lines[number] for number in numbers], shared)
    sections = {name: Section(parts, lines, str(path)) for name, parts in chosen.items()}
    identity = {key: value for key, value in head.items() if key not in ("parts", "crc32")}
    return {**identity, "schema": schema, **sections}


def _read(shared: Path) -> bytes:
    try:
        with shared.open("rb") as stream:
            return stream.read(_LIMIT)
    except OSError as error:
        raise LayoutError(f"cannot read {shared}: {error.strerror}") from error


def _parsed(line: str) -> Any:
    """The value in a line, whatever follows it (the comma). Raises ValueError."""
    return _DECODER.raw_decode(line)[0]


def _by_section(lines: list[str], shared: Path) -> dict[str, dict[str, str]]:
    """Line by section and name, without parsing it: the two come first, and need no escapes."""
    found: dict[str, dict[str, str]] = {name: {} for name in SECTIONS}
    try:
        for line in lines:
            _, section, _, name, _ = line.split('"', 4)
            found[section][name] = line
    except (ValueError, KeyError) as error:
        raise LayoutError(f"{shared} is damaged") from error
    return {name: parts for name, parts in found.items() if parts or name != "dispatch"}


def checksum(shared: bytes) -> int:
    """What proves that a release's file and the shared one were written together."""
    return zlib.crc32(shared)


def _expanded(stored: Any, lines: Sequence[str]) -> dict[str, Any]:
    """A stored entry of "structs" in full. Raises TypeError, IndexError and their like where it is damaged."""
    size, number = stored
    fields: dict[str, Any] = {}
    _add_members(fields, lines, number, "", 0, "")
    return {"size": size, "fields": fields}


def _add_members(
    fields: dict[str, Any], lines: Sequence[str], number: int, prefix: str, start: int, base: str
) -> None:
    """Add the members in one line, for a structure at ``start`` whose members' names begin with ``prefix``."""
    for entry in _parsed(lines[number]):
        if len(entry) == _PLAIN:  # nearly all of them
            name, offset, size, kind = entry
            field = {"offset": start + offset, "size": size, "type": kind}
        elif len(entry) == _OF_BASE:
            offset, name, inner = entry
            _add_members(fields, lines, inner, prefix, start + offset, name)
            continue
        else:
            name, offset, size, kind, first, *bits = entry
            field = {"offset": start + offset, "size": size, "type": kind}
            if len(entry) == _BITS:
                field.update(bit_offset=8 * start + first, bit_size=bits[0])
            elif len(entry) != _HOLDS:
                raise ValueError(f"{name} has {len(entry)} numbers")
        if base:
            field["base"] = base
        fields[prefix + name] = field
        if len(entry) == _HOLDS:
            _add_members(fields, lines, entry[-1], f"{prefix}{name}.", start + offset, base)
