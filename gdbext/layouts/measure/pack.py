"""Writes the layouts of many releases of PyTorch as ``layouts.packed`` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdbext.layouts import packed, store
from gdbext.layouts.measure.write import write, write_text


def pack(documents: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write all ``documents`` into ``folder``, in order of their releases: the same ones make the same files."""
    numbers: dict[str, int] = {}
    heads = []
    for document in sorted(documents, key=_order):
        lines = list(_lines(document))
        parts = [numbers.setdefault(line, len(numbers) + 1) for line in lines]
        kept = {key: value for key, value in document.items() if key not in packed.SECTIONS}
        crc32 = packed.checksum([line.encode() for line in lines])
        heads.append({**kept, "schema": packed.SCHEMA, "crc32": crc32, "parts": parts})
    write_text("[\n" + ",\n".join(numbers) + "\n]\n", folder / packed.SHARED)
    for head in heads:
        write(head, folder / f"{head['id']}.json")


def _order(document: Mapping[str, Any]) -> tuple[Any, ...]:
    return store.release(document["provenance"]["version"]), document["id"]


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    for section in packed.SECTIONS:
        for name, value in sorted(document[section].items()):
            assert not {'"', "\\"} & set(name), name
            stored = packed.compact(value) if section == "structs" else value
            yield json.dumps([section, name, stored], separators=(",", ":"))
