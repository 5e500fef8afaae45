"""``settings`` of a report as JSON."""

from __future__ import annotations

from typing import Any

from gdbext.model.sections.settings_section import SettingsSection
from gdbext.render.json.values import plain


def document(section: SettingsSection, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """Name to value; null for what is not known."""
    return {setting.name: plain(setting.value) for setting in section.settings}
