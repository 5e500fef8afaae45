"""The sections of a report as members of its JSON document."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gdbext.model.sections.section import Section
from gdbext.render.json.values import plain

_DOCUMENTS = frozenset({"operators", "lookup", "breaks", "trace", "info", "settings", "tensor", "values"})
"""Sections with a module in documents/ whose ``document(section, why)`` renders them. The others, as new ones should
be, are rendered by ``plain``: their fields are their members."""


def members(sections: tuple[Section, ...], why: bool) -> dict[str, Any]:
    """Each section under its name. ``why``: with the evidence."""
    return {section.name: _value(section, why) for section in sections}


def _value(section: Section, why: bool) -> Any:
    if section.name not in _DOCUMENTS:
        return plain(section)
    return import_module(f"gdbext.render.json.documents.{section.name}_document").document(section, why)
