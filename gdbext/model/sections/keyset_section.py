"""A decoded DispatchKeySet, as ``dispatch-keyset`` reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.sections.section import Section


@dataclass(frozen=True)
class KeySetSection(Section):
    """A ``c10::DispatchKeySet`` with its parts."""

    name: ClassVar[str] = "keyset"
    bits: int
    keys: tuple[str, ...]
    text: str
    """As ``str(torch._C.DispatchKeySet)`` prints it."""
    functionalities: tuple[str, ...]
    backends: tuple[str, ...]
    key: str | None
    """The highest priority key; None, as ``table_index``, where there are stray bits."""
    table_index: int | None
    stray_bits: int
    """Bits that mean nothing in this build of torch; a real keyset has none."""
