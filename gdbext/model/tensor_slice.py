"""TensorSlice: the numbers of a tensor's two-dimensional slice, as a picture shows them."""

from __future__ import annotations

from gdbext.model.record import Record


class TensorSlice(Record):
    """``leading`` is the index of the dimensions before the last two; a tensor of fewer dimensions is one row.

    ``rows`` and ``columns`` are the slice's own sizes; ``values`` has every ``row_step``-th and ``column_step``-th of
    them. Of complex numbers the absolute values are shown (``is_magnitude``).
    """

    leading: tuple[int, ...]
    rows: int
    columns: int
    row_step: int
    column_step: int
    values: tuple[tuple[float, ...], ...]
    is_magnitude: bool = False
