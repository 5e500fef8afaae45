"""The JSON Schema of reports, made of the records that they are written from (gdbext/render/plain_json.py).

A member has the type of its field; its description is the text below the field. It is required where the field has no
default: whoever adds a field gives it one, so that documents of older versions stay valid.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any

import gdbext
from gdbext.diagnosis.kinds import KINDS
from gdbext.diagnosis.report import SCHEMA, Report
from gdbext.diagnosis.report.finding import NOTE, FindingKind
from gdbext.engine.vocabulary import Section
from gdbext.render.annotation_names import alternatives, arguments_of, resolve_name
from gdbext.render.plain_json import Encoding, JsonField, annotation_texts, members_of, possible_records
from gdbext.tools.ranks import job_report
from gdbext.tools.ranks.job_report import JobReport
from gdbext.tools.trace.trace_output import ChromeTrace, JsonTrace

DESCRIPTION = (
    "The document that every command gives with --json. A command that fails gives target null and errors. Members may"
    " be added, their meaning does not change. Other documents are among the definitions: chrome_trace, trace_event."
)
RANKS_DESCRIPTION = (
    "scripts/dispatch ranks --json. Sets of ranks are text such as 0-4,6-7. All else follows from reports and"
    " unreached: two documents are merged by uniting those (of two reports on one process, by job, rank, host and pid,"
    " one stays), so that merging is associative."
)
TRACE_DESCRIPTION = "A member of events, and a line of dispatch-trace --output FILE.jsonl."
CHROME_DESCRIPTION = "dispatch-trace --output FILE.json, in Chrome's trace event format."
NUMBER_TEXTS = ["NaN", "Infinity", "-Infinity"]
REAL = {"anyOf": [{"type": "number"}, {"enum": NUMBER_TEXTS}]}
SHARED = {
    "hexadecimal": {
        "description": "An address or a set of bits.",
        "type": "string",
        "pattern": "^0x[0-9a-f]+$",
    },
    "number": {
        "description": "A number; NaN, Infinity and -Infinity as strings; [real, imaginary] for a complex one.",
        "anyOf": [*REAL["anyOf"], {"type": "array", "items": REAL}],
    },
    "ranks": {
        "description": "A set of ranks.",
        "type": "string",
        "pattern": "^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$",
    },
    "repeats": {
        "description": "The block of so many objects that begins here stands there so often in a row.",
        "type": "object",
        "properties": {"period": {"type": "integer"}, "times": {"type": "integer"}},
        "required": ["period", "times"],
        "additionalProperties": False,
    },
}
SIMPLE: Mapping[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"$ref": "#/$defs/number"},
    "complex": {"$ref": "#/$defs/number"},
    "None": {"type": "null"},
    "Any": {},
    "object": {},
    "Hexadecimal": {"$ref": "#/$defs/hexadecimal"},
    "RankSet": {"$ref": "#/$defs/ranks"},
    "Count": {"type": "integer", "minimum": 0},
    "Amount": {"type": "number", "minimum": 0},
}
ARRAYS = ("tuple", "list", "Sequence")


def schema() -> dict[str, Any]:
    """The schema of "gdbext/1"."""
    definitions = Definitions()
    body = definitions.object_of(Report)
    for section in sections():
        body["properties"][section.name] = definitions.section(section)
    trace_event = definitions.type_of(JsonTrace, "EntryStep | TracedDispatch | EndStep | InnerStep")
    chrome_event = definitions.type_of(ChromeTrace, "NameEvent | CompleteEvent")
    traces = {
        "trace_event": {"description": TRACE_DESCRIPTION, **trace_event},
        "chrome_trace": {
            "description": CHROME_DESCRIPTION,
            "type": "object",
            "properties": {"displayTimeUnit": {"const": "ms"}, "traceEvents": {"type": "array", "items": chrome_event}},
            "required": ["displayTimeUnit", "traceEvents"],
            "additionalProperties": False,
        },
    }
    return _document(SCHEMA, DESCRIPTION, body, {**traces, **definitions.known})


def ranks_schema() -> dict[str, Any]:
    """The schema of "gdbext-ranks/1"."""
    definitions = Definitions()
    return _document(job_report.SCHEMA, RANKS_DESCRIPTION, definitions.object_of(JobReport), definitions.known)


def _document(name: str, description: str, body: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{name.replace('/', '-')}.schema.json",
        "title": name,
        "description": description,
        "type": "object",
        "properties": {"schema": {"const": name}, **body["properties"]},
        "required": ["schema", *body["required"]],
        "additionalProperties": False,
        "$defs": {**SHARED, **dict(sorted(known.items()))},
    }


def sections() -> list[type[Section]]:
    """All sections, by name."""
    for module in pkgutil.walk_packages(gdbext.__path__, "gdbext."):
        if module.name.startswith(("gdbext.diagnosis.", "gdbext.tools.", "gdbext.torch.")) and "__" not in module.name:
            importlib.import_module(module.name)
    return sorted(_below(Section), key=lambda section: section.name)


def _below(kind: type[Section]) -> Iterator[type[Section]]:
    for section in kind.__subclasses__():
        yield section
        yield from _below(section)


class Definitions:
    """The definitions that have been needed so far, by name."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self._aliases: list[str] = []

    def section(self, kind: type[Section]) -> dict[str, Any]:
        """A section: a reference, or the type of the member that stands for it."""
        if kind.only_member:
            return {"description": _first_sentence(kind), **self.type_of(kind, _annotation(kind, kind.only_member))}
        return self.reference(kind)

    def reference(self, kind: type) -> dict[str, Any]:
        """A reference to the definition of a record."""
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        if name not in self.known:
            self.known[name] = {}
            self.known[name] = self.object_of(kind)
        return {"$ref": f"#/$defs/{name}"}

    def object_of(self, kind: type) -> dict[str, Any]:
        """The object that a record is written as."""
        properties, required = {}, []
        for member, owner, is_required in self._members(kind):
            properties[member.name] = self._described(owner, member)
            if is_required:
                required.append(member.name)
        if hasattr(kind, "fold_key"):
            properties["repeats"] = {"$ref": "#/$defs/repeats"}
        return {
            "description": _first_sentence(kind),
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def _members(self, kind: type, inlined: bool = False) -> Iterator[tuple[JsonField, type, bool]]:
        """The members with the record that has each, those of inline records among them."""
        for member in _members_of(kind):
            if member.encoding is not Encoding.INLINE:
                has_default = member.has_default or member.is_sparse or member.needs_why
                yield member, kind, not has_default and not inlined
                continue
            for text in alternatives(member.type):
                for each in possible_records(resolve_name(kind, text), kind) if text != "None" else ():
                    yield from self._members(each, inlined or "None" in member.type)

    def _described(self, owner: type, member: JsonField) -> dict[str, Any]:
        described = self.type_of(owner, member.type.replace(" | None", "") if member.is_sparse else member.type)
        if hasattr(owner, "json_nullable"):
            described = _any_of([described, {"type": "null"}])
        text = _member_text(owner, member.attribute)
        return {"description": text, **described} if text else described

    def type_of(self, owner: type, annotation: str) -> dict[str, Any]:
        """The schema of a type as it is written in the module of ``owner``."""
        kinds = [self._single(owner, text) for text in alternatives(annotation)]
        return kinds[0] if len(kinds) == 1 else _any_of(kinds)

    def _single(self, owner: type, text: str) -> dict[str, Any]:
        if text in SIMPLE:
            return dict(SIMPLE[text])
        name, _, inner = text.partition("[")
        arguments = arguments_of(inner[:-1]) if inner else []
        if name in ARRAYS:
            items = dict.fromkeys(argument for argument in arguments if argument != "...")
            return {"type": "array", "items": _any_of([self.type_of(owner, item) for item in items])}
        if name in ("Mapping", "dict"):
            return {"type": "object", "additionalProperties": self.type_of(owner, arguments[1])}
        if name == "Literal":
            return {"enum": [ast.literal_eval(argument) for argument in arguments]}
        named = resolve_name(owner, text)
        if isinstance(named, str):
            return self._alias(owner, text, named)
        if named is FindingKind:
            return {"enum": [kind.value for kind in (*KINDS, NOTE)]}
        if hasattr(named, "json_text"):
            return {"type": "string"}
        if issubclass(named, Enum):
            return {"enum": [member.value for member in named]}
        return self.reference(named)

    def _alias(self, owner: type, name: str, text: str) -> dict[str, Any]:
        """The type that an alias stands for; anything where it is a part of itself."""
        if name in self._aliases:
            return {}
        self._aliases.append(name)
        try:
            return self.type_of(owner, text)
        finally:
            self._aliases.pop()


def _any_of(kinds: list[dict[str, Any]]) -> dict[str, Any]:
    different = [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
    if len(different) == 1:
        return different[0]
    flat = [choice for kind in different for choice in kind.get("anyOf", [kind])]
    if all(set(choice) == {"type"} and isinstance(choice["type"], str) for choice in flat):
        return {"type": [choice["type"] for choice in flat]}
    return {"anyOf": flat}


def _members_of(kind: type) -> tuple[JsonField, ...]:
    """The members of a record, or of a section whose attributes are its fields."""
    members = members_of(kind)
    if members or not issubclass(kind, Section):
        return members
    return tuple(
        JsonField.of(name, text, True, None) for name, text in annotation_texts(kind).items() if "ClassVar" not in text
    )


def _annotation(kind: type, attribute: str) -> str:
    value = vars(kind).get(attribute)
    if isinstance(value, property):
        return str(typing.cast(Any, value.fget).__annotations__["return"])
    return annotation_texts(kind)[attribute]


def _first_sentence(kind: type) -> str:
    return " ".join((kind.__doc__ or "").partition("\n\n")[0].split())


def _member_text(owner: type, attribute: str) -> str:
    """The text below a field, or the documentation of a property."""
    for kind in owner.__mro__:
        value = vars(kind).get(attribute)
        if hasattr(value, "function"):
            return " ".join((value.__doc__ or "").split())
        if text := _field_texts(kind).get(attribute):
            return text
    return ""


@cache
def _field_texts(kind: type) -> dict[str, str]:
    if not kind.__module__.startswith("gdbext"):
        return {}
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    lines = typing.cast(ast.ClassDef, body).body
    return {
        line.target.id: " ".join(str(text.value.value).split())
        for line, text in zip(lines, lines[1:])
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
