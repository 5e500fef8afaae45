"""Writes the layouts of many releases of PyTorch or CPython in the packed form that ``engine/layouts/__init__.py``
reads: small, quick to load, and still legible in a diff."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from gdbext.engine import layouts
from gdbext.engine.layouts import store
from gdbext.torch.measure.pack import compact, write, write_text

Member = tuple[str, dict[str, Any]]
"""Name and field, as a layout document has them."""


def pack(documents: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write all ``documents``, which are of one kind, into ``folder``, in order of their releases, so that the result
    does not depend on their order: a head for each document, and a shared file with the lines of all."""
    lines: Lines = {}
    heads = []
    for document in sorted(documents, key=lambda row: (store.release(row["provenance"]["version"]), row["id"])):
        head = {key: value for key, value in document.items() if key not in layouts.SECTIONS}
        heads.append({**head, "schema": layouts.SCHEMA, "parts": list(_parts(document, lines))})
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    write_text(text, folder / layouts.shared_file(documents[0]["kind"]))
    for head in heads:
        parts = head.pop("parts")
        write({**head, "crc32": layouts.checksum(text.encode()), "parts": parts}, folder / f"{head['id']}.json")


Lines = dict[str, int]
"""The lines of the shared file: the JSON of a line → its number, from 1."""


def _line_number(lines: Lines, value: Any) -> int:
    """The number of the line with this value, which is added unless it is there."""
    return lines.setdefault(compact(value), len(lines) + 1)


def _parts(document: Mapping[str, Any], lines: Lines) -> Iterator[int]:
    """The numbers of the lines of the shared file that a document's sections consist of; new lines are added to
    ``lines``."""
    for section in layouts.SECTIONS:
        for name, value in sorted(document.get(section, {}).items()):
            assert not {'"', "\\"} & set(name), name
            if section == "structs":
                members = _packed_members(list(value["fields"].items()), lines)
                value = [value["size"], _line_number(lines, members)]
            yield _line_number(lines, [section, name, value])


def _packed_members(members: Sequence[Member], lines: Lines) -> list[list[Any]]:
    """Members of a class in the packed form: those of a base class, or of a nested structure, are in a line of their
    own (added to ``lines``), whose number stands for them; offsets there count from the start of that class."""
    entries: list[list[Any]] = []
    position = 0
    while position < len(members):
        name, field = members[position]
        if "base" in field:  # the members of one base class
            base = field["base"]
            inherited = list(takewhile(lambda member: member[1].get("base") == base, members[position:]))  # noqa: B023
            start = min(field["offset"] for _, field in inherited)
            own = [(name, {key: value for key, value in field.items() if key != "base"}) for name, field in inherited]
            entries.append([start, base, _line_number(lines, _packed_members(_rebased(own, start), lines))])
            position += len(inherited)
            continue
        entry = [name, field["offset"], field["size"], field["type"]]
        position += 1
        if "bit_size" in field:
            entry += [field["bit_offset"], field["bit_size"]]
        elif nested := list(takewhile(lambda member: member[0].startswith(f"{name}."), members[position:])):  # noqa: B023
            inner = _rebased([(path[len(name) + 1 :], member) for path, member in nested], field["offset"])
            entry.append(_line_number(lines, _packed_members(inner, lines)))
            position += len(nested)
        entries.append(entry)
    return entries


def _rebased(members: Sequence[Member], start: int) -> list[Member]:
    """The members with offsets that count from ``start``, in bytes, of the outer class."""
    rebased = []
    for name, field in members:
        moved = {**field, "offset": field["offset"] - start}
        if "bit_size" in field:
            moved["bit_offset"] = field["bit_offset"] - 8 * start
        rebased.append((name, moved))
    return rebased
