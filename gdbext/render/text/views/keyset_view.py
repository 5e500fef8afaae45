"""``dispatch-keyset``: what it reports, and that as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gdbext.model.hexadecimal import Hexadecimal
from gdbext.model.report import Report
from gdbext.model.sections.section import Section
from gdbext.render.text.style import Style


@dataclass(frozen=True)
class KeySetSection(Section):
    """A ``c10::DispatchKeySet`` with its parts."""

    name: ClassVar[str] = "keyset"
    bits: Hexadecimal
    keys: tuple[str, ...]
    text: str
    """As ``str(torch._C.DispatchKeySet)`` prints it."""
    functionalities: tuple[str, ...]
    backends: tuple[str, ...]
    key: str | None
    """The highest priority key; None, as ``table_index``, where there are stray bits."""
    table_index: int | None
    stray_bits: Hexadecimal | None
    """Bits that mean nothing in this build of torch; None for a real keyset."""


def render(report: Report, style: Style) -> Iterator[str]:
    """The set, its parts, and what a lookup with it takes."""
    keyset = report.section(KeySetSection)
    yield f"{style(keyset.text, 'bold')}  {keyset.bits:#x}"
    yield f"functionalities   {', '.join(keyset.functionalities) or 'none'}"
    yield f"backends          {', '.join(keyset.backends) or 'none'}"
    if keyset.stray_bits is not None:
        yield style(f"no DispatchKeySet: bits {keyset.stray_bits:#x} mean nothing in this build", "red")
    else:
        yield f"highest priority  {keyset.key}, table index {keyset.table_index}"
