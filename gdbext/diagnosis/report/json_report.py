"""A report as the JSON document of the contract ("gdbext/1"), written and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from gdbext.diagnosis.kinds import kind_of
from gdbext.diagnosis.report import SCHEMA, Report
from gdbext.diagnosis.report.finding import Finding, Verdict
from gdbext.engine.formats import parse_json
from gdbext.engine.targets.budget import no_garbage_collection
from gdbext.engine.terminal import shown_json
from gdbext.engine.vocabulary import Section
from gdbext.errors import BadData
from gdbext.render.plain_json import members, plain

FindingType = TypeVar("FindingType", Finding, Verdict)


def render(report: Report, pretty: bool = False) -> str:
    """The document, one line unless ``pretty``, ending in a newline."""
    return shown_json(json.dumps(document(report), indent=2 if pretty else None, ensure_ascii=True)) + "\n"


def document(report: Report) -> dict[str, Any]:
    """The document as plain JSON values."""
    with no_garbage_collection():  # all operators have half a million table entries
        return {"schema": SCHEMA, **plain(report, report.why), **members(report.sections, report.why)}


def parse(data: bytes, where: str, *sections: type[Section]) -> Report:
    """The report that a document's text describes, see ``read``. Raises BadData."""
    return read(parse_json(data), where, *sections)


def read(value: object, where: str, *sections: type[Section]) -> Report:
    """The report that a document describes, with its sections of these types. Nothing in it is trusted. Raises BadData,
    which names the member that contradicts the schema; ``where`` is the document in that error."""
    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        raise BadData(f"{where} is not a report of gdbext (schema {SCHEMA})")
    from gdbext.render.json_reader import from_json, section_from_json  # 8 ms, when documents are read back

    present = [section_from_json(kind, value[kind.name], kind.name) for kind in sections if value.get(kind.name)]
    report = from_json(Report, value, where)
    verdict = _with_kind_object(report.verdict) if report.verdict else None
    findings = tuple(map(_with_kind_object, report.findings))
    return report._replace(verdict=verdict, findings=findings, sections=tuple(present))


def _with_kind_object(finding: FindingType) -> FindingType:
    """The finding with our object for its kind in place of the one that was made from the JSON word."""
    return finding._replace(kind=kind_of(finding.kind.value))
