"""All kinds of damage."""

from __future__ import annotations

from . import core_kinds, document_kinds, live_kinds, recording_kinds
from .look import Kind


def available() -> list[Kind]:
    """Those that this machine can do."""
    found = [*recording_kinds.KINDS, *document_kinds.KINDS]
    if core_kinds.can_take_cores():
        found += core_kinds.KINDS
    if live_kinds.can_trace():
        found += live_kinds.KINDS
    return found
