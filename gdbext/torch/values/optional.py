"""Where an optional keeps its value, and where it says whether it has one."""

from __future__ import annotations

from gdbext.layouts.layout import Layout
from gdbext.model.record import Record


class OptionalShape(Record):
    """Offsets in bytes from the start of the optional."""

    value: int
    engaged: int
    """A bool."""


def optional_shape(layout: Layout, inner: str) -> OptionalShape:
    """That of an optional ``inner``. Raises LayoutError.

    libstdc++'s ``std::optional`` has the value first; ``c10::optional`` of torch before 2.1 (c10/util/Optional.h)
    is a class of its own, with the flag in front.
    """
    if layout.has_struct(f"c10::optional<{inner}>"):
        own = layout.struct(f"c10::optional<{inner}>")
        return OptionalShape(own.field("storage_").offset, own.field("init_").offset)
    standard = layout.struct(f"std::optional<{inner}>")
    return OptionalShape(standard.field("_M_payload").offset, standard.field("_M_payload._M_engaged").offset)
