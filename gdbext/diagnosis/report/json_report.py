"""A report as the JSON document of the contract ("gdbext/1")."""

from __future__ import annotations

import json
from typing import Any

from gdbext.diagnosis.report import SCHEMA, Report
from gdbext.engine.targets.budget import no_garbage_collection
from gdbext.engine.terminal import shown_json
from gdbext.render.plain_json import members, plain


def render(report: Report, pretty: bool = False) -> str:
    """The document, one line unless ``pretty``, ending in a newline."""
    return shown_json(json.dumps(document(report), indent=2 if pretty else None, ensure_ascii=True)) + "\n"


def document(report: Report) -> dict[str, Any]:
    """The document as plain JSON values."""
    with no_garbage_collection():  # all operators have half a million table entries
        return {"schema": SCHEMA, **plain(report, report.why), **members(report.sections, report.why)}
