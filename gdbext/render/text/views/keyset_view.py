"""``dispatch-keyset`` as text."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.model.report import Report
from gdbext.model.sections.keyset_section import KeySetSection
from gdbext.render.text.style import Style


def render(report: Report, style: Style) -> Iterator[str]:
    """The set, its parts, and what a lookup with it takes."""
    keyset = report.section(KeySetSection)
    yield f"{style(keyset.text, 'bold')}  {keyset.bits:#x}"
    yield f"functionalities   {', '.join(keyset.functionalities) or 'none'}"
    yield f"backends          {', '.join(keyset.backends) or 'none'}"
    if keyset.stray_bits:
        yield style(f"no DispatchKeySet: bits {keyset.stray_bits:#x} mean nothing in this build", "red")
    else:
        yield f"highest priority  {keyset.key}, table index {keyset.table_index}"
