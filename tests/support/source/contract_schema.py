"""The JSON Schemas of docs/ (draft 2020-12), and whether a document is as they say.

A validator of our own, for every document of every test passes through it: unit tests need nothing but Python, and it
is faster than jsonschema, which tests/integration/render/test_contract_schema.py compares it with. It knows the
keywords that our schemas use and refuses a schema with any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Union

DOCS = Path(__file__).resolve().parents[3] / "docs"
REPORT = "gdbext/1"
LONGEST = 400
"""Items of a list that are looked at, spread evenly: all operators have half a million table entries."""

Place = Union[str, tuple[Any, object]]
"""Where a value stands: the document's name, or (the place of what it is in, its name or number there)."""
_SCALARS: Mapping[str, tuple[type, ...]] = {"string": (str,), "boolean": (bool,), "null": (type(None),)}
_CLASSES = {"object": (dict,), "array": (list,), "integer": (int,), "number": (int, float), **_SCALARS}
_OTHERS = {"$schema", "$id", "$defs", "title", "description", "additionalProperties"}
"""Annotations, and what is looked at with the properties."""


def check(document: Any, definition: str = "") -> None:
    """Assert that it is what the schema says that it names, or what that definition of gdbext/1 says."""
    found = faults(document, definition)
    assert not found, "the document is not as docs/ has it (CONTRIBUTING.md says what to do):\n" + "\n".join(found[:20])


def faults(document: Any, definition: str = "") -> list[str]:
    """Everything in it that the schema does not allow, each with its place."""
    name = REPORT if definition else document.get("schema")
    if not isinstance(name, str) or not _file(name).exists():
        return [f"document.schema is {name!r}, of which docs/ has no schema"]
    root = _kept(name)
    return list(_faults(root, root["$defs"][definition] if definition else root, document, definition or "document"))


def schema(name: str = REPORT) -> dict[str, Any]:
    """The schema of that name: "gdbext/1" is docs/gdbext-1.schema.json."""
    found: dict[str, Any] = json.loads(_file(name).read_text())
    return found


_kept = cache(schema)


def _file(name: str) -> Path:
    return DOCS / f"{name.replace('/', '-')}.schema.json"


def _faults(root: Mapping[str, Any], node: Mapping[str, Any] | bool, value: Any, at: Place) -> Iterator[str]:
    if isinstance(node, bool):
        if not node:
            yield f"{_text(at)} is not allowed"
        return
    for word, argument in node.items():
        if word in _SIMPLE:
            if not _SIMPLE[word](argument, value):
                yield f"{_text(at)} is {value!r:.80}, not of {word} {argument}"
        elif word == "$ref":
            _, _, name = argument.partition("#/$defs/")
            yield from _faults(root, root["$defs"][name] if name else root, value, at)
        elif word == "anyOf":
            alternatives = [list(_faults(root, each, value, at)) for each in argument]
            if all(alternatives):
                yield from max(alternatives, key=lambda found: (len(found[0]), -len(found)))  # the deepest place
        elif word == "properties":
            others = node.get("additionalProperties", True)
            for name, member in value.items() if isinstance(value, dict) else ():
                yield from _faults(root, argument.get(name, others), member, (at, name))
        elif word == "items":
            size = len(value) if isinstance(value, list) else 0
            for index in range(0, size, max(1, size // LONGEST)):
                yield from _faults(root, argument, value[index], (at, index))
        elif word not in _OTHERS:
            raise ValueError(f"{word!r} is not a keyword that tests/support/source/contract_schema.py knows")
    if "additionalProperties" in node and "properties" not in node:
        yield from _faults(root, {"properties": {}, "additionalProperties": node["additionalProperties"]}, value, at)


def _text(at: Place) -> str:
    if isinstance(at, str):
        return at
    inside, name = at
    return f"{_text(inside)}[{name}]" if isinstance(name, int) else f"{_text(inside)}.{name}"


def _is(names: str | Iterable[str], value: Any) -> bool:
    every = (names,) if isinstance(names, str) else names
    return any(
        isinstance(value, _CLASSES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in every
    )


_SIMPLE: Mapping[str, Callable[[Any, Any], object]] = {
    "type": _is,
    "enum": lambda values, value: value in values,
    "const": lambda one, value: value == one,
    "required": lambda names, value: not isinstance(value, dict) or value.keys() >= set(names),
    "minimum": lambda least, value: not _is("number", value) or value >= least,
    "minLength": lambda least, value: not isinstance(value, str) or len(value) >= least,
    "pattern": lambda text, value: not isinstance(value, str) or re.search(text, value),
}
