"""Where an optional keeps its value, and where it says whether it has one."""

from __future__ import annotations

from gdbext.layouts.layout import Layout
from gdbext.model.record import Record


class OptionalShape(Record):
    """Offsets in bytes from the start of the optional."""

    value: int
    engaged: int
    """A bool."""


def has_own_optional(layout: Layout) -> bool:
    """Torch before 2.2 has ``c10::optional`` (c10/util/Optional.h), whose flag is in front of the value.

    That of an ArrayRef is two words and has no flag: where there is none, the address is 0 and the length 1.
    """
    name = "c10::OptionalArrayRef"
    return layout.has_struct(name) and layout.struct(name).size == 16


def optional_shape(layout: Layout, inner: str) -> OptionalShape:
    """That of an optional ``inner``. Raises LayoutError.

    libstdc++'s ``std::optional`` has the value first; ``c10::optional`` of torch before 2.2 (c10/util/Optional.h)
    is a class of its own, with the flag in front.
    """
    names = (f"optional<{inner}>", f"c10::optional<{inner}>")
    shape = layout.struct(next((name for name in names if layout.has_struct(name)), f"std::optional<{inner}>"))
    if "init_" in shape.fields:
        return OptionalShape(shape.field("storage_").offset, shape.field("init_").offset)
    return OptionalShape(shape.field("_M_payload").offset, shape.field("_M_payload._M_engaged").offset)
