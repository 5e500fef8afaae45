"""``keyset`` of a report as JSON."""

from __future__ import annotations

from typing import Any

from gdbext.model.sections.keyset_section import KeySetSection
from gdbext.render.json.values import plain


def document(section: KeySetSection, why: bool) -> dict[str, Any]:  # noqa: ARG001 - the same with evidence
    """The set and its parts; ``stray_bits`` is null for a real keyset."""
    stray = section.stray_bits
    return {**plain(section), "bits": f"{section.bits:#x}", "stray_bits": f"{stray:#x}" if stray else None}
