"""Argument: one argument of an operator's call, as it was found on a stack or at a stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.model.certainty import Certainty
from gdbext.model.record import Record

if TYPE_CHECKING:
    from gdbext.model.statistics import Statistics


class ArgumentTensor(Record):
    """A tensor of an argument; a list of tensors has several."""

    address: int
    """Of its TensorImpl; 0 for a tensor that is not there (None in a list, the undefined tensor)."""
    short: str
    statistics: Statistics | None = None


class Argument(Record):
    """An argument by its name in the schema. ``text`` is "" where its value is unknown."""

    name: str
    type: str
    """Of the schema: "Tensor", "int[]"."""
    text: str
    certainty: Certainty
    tensors: tuple[ArgumentTensor, ...] = ()

    @property
    def short(self) -> str:
        """``self=f32[4, 4] cpu``, ``alpha=?`` for an unknown one."""
        return f"{self.name}={self.text or '?'}"
