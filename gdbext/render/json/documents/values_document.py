"""``values`` of a report as JSON."""

from __future__ import annotations

from typing import Any

from gdbext.model.sections.values_section import ValuesSection


def document(section: ValuesSection, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """The values themselves were written as they were seen."""
    return {
        "mode": section.mode,
        "count": section.count,
        "ending": {"kind": section.ending.kind.value, "text": section.ending.text, "status": section.ending.status},
        "notes": list(section.notes),
        "folder": section.folder,
        "files": section.files,
    }
