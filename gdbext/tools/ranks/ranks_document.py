"""The report on a job as JSON (schema "gdbext-ranks/1"), and back: its rows are all that merging needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gdbext.engine.terminal import shown_json
from gdbext.errors import BadData
from gdbext.render.json_reader import from_json
from gdbext.render.plain_json import plain
from gdbext.tools.ranks.job_report import SCHEMA, JobReport, RowsDocument


def render(report: JobReport, pretty: bool = False) -> str:
    """The document, one line unless ``pretty``, ending in a newline."""
    return shown_json(json.dumps(document(report), indent=2 if pretty else None, ensure_ascii=True)) + "\n"


def document(report: JobReport) -> dict[str, Any]:
    """The document as plain JSON values."""
    return {"schema": SCHEMA, **plain(report)}


def read_rows(value: Any, where: str) -> RowsDocument:
    """The rows of a document that was made elsewhere. Raises BadData."""
    if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
        raise BadData(f"{where} is not a report of ranks (schema {SCHEMA})")
    return from_json(RowsDocument, value, where)
