"""Writes the layouts of many releases of PyTorch, or of CPython, as ``engine/layouts/__init__.py`` reads them.

The files are small, quick to load, and can still be read in a diff.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from gdbext.engine import layouts
from gdbext.engine.layouts import store


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write a document so that a reader never sees half of it: temporary file in the same folder, then rename."""
    write_text(dumps(document), path)


def write_text(text: str, path: Path) -> None:
    """The same for any text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".layout-")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def dumps(document: Mapping[str, Any]) -> str:
    """JSON with one struct or enumeration a line."""
    lines = []
    for key, value in document.items():
        if key in ("structs", "enums") and value:
            rows = ",\n".join(f" {json.dumps(name)}: {_compact(each)}" for name, each in sorted(value.items()))
            lines.append(f"{json.dumps(key)}: {{\n{rows}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {_compact(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


Member = tuple[str, dict[str, Any]]
"""Name and field, as a layout document has them."""


def pack(documents: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write all ``documents``, which are of one kind, into ``folder``, in order of their releases: the same ones make
    the same files."""
    lines = Lines()
    heads = []
    for document in sorted(documents, key=_order):
        kept = {key: value for key, value in document.items() if key not in layouts.SECTIONS}
        heads.append({**kept, "schema": layouts.SCHEMA, "parts": list(_parts(document, lines))})
    text = lines.text()
    write_text(text, folder / layouts.shared_file(documents[0]["kind"]))
    for head in heads:
        parts = head.pop("parts")
        write({**head, "crc32": layouts.checksum(text.encode()), "parts": parts}, folder / f"{head['id']}.json")


class Lines:
    """The lines of the shared file, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        """Number of the line with this value, which is a new one unless it is there."""
        return self._numbers.setdefault(json.dumps(value, separators=(",", ":")), len(self._numbers) + 1)

    def text(self) -> str:
        """The text of the packed file."""
        return "[\n" + ",\n".join(self._numbers) + "\n]\n"


def _order(document: Mapping[str, Any]) -> tuple[Any, ...]:
    return store.release(document["provenance"]["version"]), document["id"]


def _parts(document: Mapping[str, Any], lines: Lines) -> Iterator[int]:
    """The numbers of a document's own lines."""
    for section in layouts.SECTIONS:
        for name, value in sorted(document.get(section, {}).items()):
            assert not {'"', "\\"} & set(name), name
            if section == "structs":
                members = _folded(list(value["fields"].items()), lines)
                value = [value["size"], lines.number(members)]
            yield lines.number([section, name, value])


def _folded(members: Sequence[Member], lines: Lines) -> list[list[Any]]:
    """Members as they are stored: those of a base class, and of a structure among them, in a line of their own."""
    found: list[list[Any]] = []
    at = 0
    while at < len(members):
        entry, count = (_inherited if "base" in members[at][1] else _member)(members[at:], lines)
        found.append(entry)
        at += count
    return found


def _inherited(members: Sequence[Member], lines: Lines) -> tuple[list[Any], int]:
    """The lines for the members of one base class, which come first; how many there are."""
    base = members[0][1]["base"]
    inherited = list(takewhile(lambda each: each[1].get("base") == base, members))
    start = min(field["offset"] for _, field in inherited)
    plain = [(name, {key: value for key, value in field.items() if key != "base"}) for name, field in inherited]
    return [start, base, lines.number(_folded(_from(plain, start), lines))], len(inherited)


def _member(members: Sequence[Member], lines: Lines) -> tuple[list[Any], int]:
    """The lines for the first member, and for those inside of it; how many these are together."""
    name, field = members[0]
    entry = [name, field["offset"], field["size"], field["type"]]
    if "bit_size" in field:
        return [*entry, field["bit_offset"], field["bit_size"]], 1
    inside = list(takewhile(lambda each: each[0].startswith(f"{name}."), members[1:]))
    if not inside:
        return entry, 1
    moved = _from([(each[len(name) + 1 :], of) for each, of in inside], field["offset"])
    return [*entry, lines.number(_folded(moved, lines))], 1 + len(inside)


def _from(members: Sequence[Member], start: int) -> list[Member]:
    """The same members, counted from there."""
    found = []
    for name, field in members:
        moved = {**field, "offset": field["offset"] - start}
        if "bit_size" in field:
            moved["bit_offset"] = field["bit_offset"] - 8 * start
        found.append((name, moved))
    return found
