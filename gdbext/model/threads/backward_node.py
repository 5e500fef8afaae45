"""BackwardNode: a node of autograd's graph that runs in the frames of a stack."""

from __future__ import annotations

from gdbext.model.record import Record


class BackwardNode(Record):
    """``level`` is the native frame of the engine's call; ``sequence_nr`` is known of the innermost node alone."""

    level: int
    name: str
    sequence_nr: int | None
    variable: str | None = None
    """AccumulateGrad: the tensor whose gradient it adds to."""
