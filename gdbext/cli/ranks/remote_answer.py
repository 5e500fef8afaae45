"""What another machine wrote, as rows: the document of its ranks, or why there is none."""

from __future__ import annotations

import json
from typing import Any

from gdbext.errors import BadData
from gdbext.jobs.merge import Rows, merge, rows
from gdbext.model.job.rank_report import Unreached
from gdbext.render.json.documents import ranks_document

SAID = 300
"""Characters that are shown of what a program said instead of an answer."""


def answer(where: str, output: bytes, status: int) -> Rows:
    """The rows in what one machine wrote: a document on a line, among whatever its shell says."""
    found, documents = rows(), 0
    for line in output.splitlines():
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            found = merge(found, rows(*_read(json.loads(line), where)))
            documents += 1
        except (ValueError, BadData) as error:
            return rows(unreached=[Unreached(where, f"its answer cannot be read: {error}")])
    if documents:
        return found
    said = output.decode("utf-8", "replace").strip()[-SAID:]
    return rows(unreached=[Unreached(where, f"no report (status {status})" + (f": {said}" if said else ""))])


def _read(document: Any, where: str) -> tuple[list[Any], list[Unreached]]:
    """A document of ranks, or that of a failure: there is no rank on that machine."""
    if isinstance(document, dict) and document.get("errors"):
        error = document["errors"][0]
        return [], [Unreached(where, str(error["what"]), str(error.get("help") or ""))]
    reports, unreached = ranks_document.read_rows(document, where)
    return reports, [each._replace(where=f"{where}: {each.where}") for each in unreached]
