"""All kinds of damage."""

from __future__ import annotations

import shutil

from . import core_kinds, job_kinds, live_kinds, recording_kinds
from .look import Kind


def available() -> list[Kind]:
    found = [*recording_kinds.KINDS, *job_kinds.KINDS]
    if shutil.which("gdb") and shutil.which("gcc"):
        found += core_kinds.KINDS
    if live_kinds.can_trace():
        found += live_kinds.KINDS
    return found
