"""The JSON Schemas of docs/ (draft 2020-12), and whether a document is as they say.

A validator of our own, for every document of every test passes through it: unit tests need nothing but Python, and it
is seven times as fast as jsonschema, which tests/integration/render/test_contract_schema.py compares it with. It knows
the keywords that our schemas use and refuses a schema with any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Union

DOCS = Path(__file__).resolve().parents[3] / "docs"
REPORT = "gdbext/1"

LONGEST = 400
"""Items of a list that are looked at, spread evenly: all operators have half a million table entries."""

Place = Union[str, tuple[Any, object]]
"""Where a value stands: the document's name, or (the place of what it is in, its name or number there)."""
Check = Callable[[Any, Place], Sequence[str]]
"""(value, where it stands) to its faults. Most have none: of these no text is made."""

_SCALARS: Mapping[str, tuple[type, ...]] = {"string": (str,), "boolean": (bool,), "null": (type(None),)}
_CLASSES = {"object": (dict,), "array": (list,), "integer": (int,), "number": (int, float), **_SCALARS}
_ANNOTATIONS = {"$schema", "$id", "$defs", "title", "description"}
_OBJECTS = {"properties", "required", "additionalProperties"}


def check(document: Any, definition: str = "") -> None:
    """Assert that it is what the schema says that it names, or what that definition of gdbext/1 says."""
    found = faults(document, definition)
    assert not found, "the document is not as docs/ has it (CONTRIBUTING.md says what to do):\n" + "\n".join(found[:20])


def faults(document: Any, definition: str = "") -> list[str]:
    """Everything in it that the schema does not allow, each with its place."""
    name = REPORT if definition else document.get("schema")
    if not isinstance(name, str) or not _file(name).exists():
        return [f"document.schema is {name!r}, of which docs/ has no schema"]
    return list(_validator(name, definition)(document, definition or "document"))


def schema(name: str = REPORT) -> dict[str, Any]:
    """The schema of that name: "gdbext/1" is docs/gdbext-1.schema.json."""
    found: dict[str, Any] = json.loads(_file(name).read_text())
    return found


def _file(name: str) -> Path:
    return DOCS / f"{name.replace('/', '-')}.schema.json"


@cache
def _validator(name: str, definition: str) -> Check:
    return Compiler(schema(name)).reference(f"#/$defs/{definition}" if definition else "#")


class Compiler:
    """Makes checks of a schema, of each definition once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._references: dict[str, Check] = {}

    def reference(self, pointer: str) -> Check:
        """``#`` or ``#/$defs/NAME``. A definition may refer to itself."""
        if pointer not in self._references:
            self._references[pointer] = lambda value, at: made(value, at)
            _, _, name = pointer.partition("#/$defs/")
            made = self.compile(self._root["$defs"][name] if name else self._root)
            self._references[pointer] = made
        return self._references[pointer]

    def compile(self, node: Mapping[str, Any] | bool) -> Check:
        """The check of one (sub)schema. Raises ValueError for a keyword that is not known here."""
        if isinstance(node, bool):
            return lambda _, at: () if node else [f"{_text(at)} is not allowed"]
        checks = [self._keyword(word, node) for word in node if word not in _ANNOTATIONS | _OBJECTS]
        if _OBJECTS & node.keys():
            checks.append(self._object(node))
        return checks[0] if len(checks) == 1 else lambda value, at: _all((each, value, at) for each in checks)

    def _keyword(self, word: str, node: Mapping[str, Any]) -> Check:
        argument = node[word]
        if word == "$ref":
            return self.reference(argument)
        if word == "anyOf":
            return _any_of([self.compile(each) for each in argument])
        if word == "items":
            return _items(self.compile(argument))
        if word not in _SIMPLE:
            raise ValueError(f"{word!r} is not a keyword that tests/support/source/contract_schema.py knows")
        return _SIMPLE[word](argument)

    def _object(self, node: Mapping[str, Any]) -> Check:
        members = {name: self.compile(each) for name, each in node.get("properties", {}).items()}
        others = self.compile(node.get("additionalProperties", True))
        required = node.get("required", ())

        def check(value: Any, at: Place) -> Sequence[str]:
            if not isinstance(value, dict):
                return ()
            found = [f"{_text(at)}.{name} is missing" for name in required if name not in value]
            return found + _all((members.get(name, others), each, (at, name)) for name, each in value.items())

        return check


def _text(at: Place) -> str:
    if isinstance(at, str):
        return at
    inside, name = at
    return f"{_text(inside)}[{name}]" if isinstance(name, int) else f"{_text(inside)}.{name}"


def _all(checks: Iterable[tuple[Check, Any, Place]]) -> list[str]:
    found: list[str] = []
    for check, value, at in checks:
        faults = check(value, at)
        if faults:
            found += faults
    return found


def _items(check: Check) -> Check:
    def check_items(value: Any, at: Place) -> Sequence[str]:
        size = len(value) if isinstance(value, list) else 0
        return _all((check, value[index], (at, index)) for index in range(0, size, max(1, size // LONGEST)))

    return check_items


def _any_of(checks: list[Check]) -> Check:
    """The faults are those of the alternative that comes nearest: one whose type is right, with the fewest."""

    def check(value: Any, at: Place) -> Sequence[str]:
        failed: list[Sequence[str]] = []
        for one in checks:
            found = one(value, at)
            if not found:
                return ()
            failed.append(found)
        inside = [found for found in failed if not found[0].startswith(f"{_text(at)} is ")]
        return min(inside or failed, key=len)

    return check


def _plain(allowed: Callable[[Any], object], what: str) -> Check:
    return lambda value, at: () if allowed(value) else [f"{_text(at)} is {value!r:.80}, not {what}"]


def _type(names: str | list[str]) -> Check:
    every = [names] if isinstance(names, str) else names
    usual = frozenset(each for name in every for each in _CLASSES[name])
    return _plain(lambda value: type(value) in usual or any(_is(name, value) for name in every), f"of type {names}")


def _is(name: str, value: Any) -> bool:
    return isinstance(value, _CLASSES[name]) and (name == "boolean" or not isinstance(value, bool))


_SIMPLE: Mapping[str, Callable[[Any], Check]] = {
    "type": _type,
    "enum": lambda values: _plain(lambda value: value in values, f"one of {values}"),
    "const": lambda one: _plain(lambda value: value == one, repr(one)),
    "minimum": lambda least: _plain(lambda value: not _is("number", value) or value >= least, f"at least {least}"),
    "minLength": lambda least: _plain(lambda value: not _is("string", value) or len(value) >= least, "long enough"),
    "pattern": lambda text: _plain(lambda value: not _is("string", value) or re.search(text, value), f"like {text}"),
}
