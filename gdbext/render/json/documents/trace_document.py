"""``trace`` of a report as JSON."""

from __future__ import annotations

from typing import Any

from gdbext.model.ending import Ending
from gdbext.model.sections.trace_section import TraceSection
from gdbext.render.json.values import plain


def document(section: TraceSection, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """How the trace ended and where it went; ``events`` only where it went nowhere else."""
    value: dict[str, Any] = {
        "count": section.count,
        "operators": list(section.operators),
        "hooks": section.hooks,
        "ending": ending(section.ending),
        "open": plain(section.open),
        "notes": list(section.notes),
        "output": section.output,
        "engine": section.engine,
        "lost": section.lost,
        "unseen": section.unseen,
    }
    if section.events is not None:
        value["events"] = list(section.events)
    return value


def ending(value: Ending) -> dict[str, Any]:
    """Why the process does not run any longer; its error is among the report's."""
    return {"kind": value.kind.value, "text": value.text, "status": value.status}
