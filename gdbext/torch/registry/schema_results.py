"""The results of a schema's text, by type and name, and where C++ functions leave them (torchgen/api/cpp.py)."""

from __future__ import annotations

import re

from gdbext.model.record import Record


class SchemaResult(Record):
    """One result. ``alias`` is the letter that an argument which is returned itself has, too: "" for a new value."""

    kind: str
    name: str
    alias: str


def schema_results(text: str) -> tuple[SchemaResult, ...]:
    """The results, unnamed ones as ``result0``, ``result1``, …"""
    results = text.rpartition("-> ")[2].strip()
    inside = results[1:-1] if results.startswith("(") else results
    found = []
    for number, part in enumerate(re.split(r", (?![^(\[]*[)\]])", inside) if inside else []):
        alias = re.search(r"\((\w)[^)]*\)", part)
        words = re.sub(r"\([^)]*\)", "", part).split()
        name = words[1] if len(words) > 1 else f"result{number}"
        found.append(SchemaResult(words[0], name, alias.group(1) if alias else ""))
    return tuple(found)


def aliased_arguments(text: str) -> dict[str, str]:
    """Alias letter → name of the argument that is written to."""
    inside = text[text.find("(") + 1 : text.rfind(") ->")]
    found = re.findall(r"\w+\((\w)!\)\S* (\w+)", inside)
    return dict(found)
