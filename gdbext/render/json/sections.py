"""The sections of a report as members of its JSON document."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gdbext.model.sections.section import Section
from gdbext.render.json.values import plain

_RENDERERS = {
    "operators": "operators_document",
    "lookup": "lookup_document",
    "breaks": "breaks_document",
    "trace": "trace_document",
    "info": "target_info_document",
    "settings": "settings_document",
    "tensor": "tensor_document",
    "values": "values_document",
}
"""Section name to the module here whose ``document(section, why)`` renders it. The others, as new ones should be, are
rendered by ``plain``: their fields are their members."""


def members(sections: tuple[Section, ...], why: bool) -> dict[str, Any]:
    """Each section under its name. ``why``: with the evidence."""
    return {section.name: _value(section, why) for section in sections}


def _value(section: Section, why: bool) -> Any:
    renderer = _RENDERERS.get(section.name)
    if renderer is None:
        return plain(section)
    return import_module(f"gdbext.render.json.{renderer}").document(section, why)
