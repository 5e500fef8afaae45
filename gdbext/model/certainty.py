"""Certainty: how sure the report is of a statement, in one vocabulary for all of them."""

from __future__ import annotations

from enum import Enum


class Certainty(Enum):
    """How a value is known; members compare by strength, ``UNKNOWN < INFERRED < VERIFIED < EXACT``."""

    UNKNOWN = "unknown"
    """Nothing speaks for a value, or more than one value is possible."""
    INFERRED = "inferred"
    """Concluded from something else: a kernel, frames of other threads."""
    VERIFIED = "verified"
    """Found in a frame, and proven by an independent second reading."""
    EXACT = "exact"
    """Read at the very place where the process keeps or passes the value."""

    @property
    def is_proven(self) -> bool:
        """The value may be stated without a reservation."""
        return self >= Certainty.VERIFIED

    def __lt__(self, other: Certainty) -> bool:
        return _STRENGTH[self] < _STRENGTH[other]

    def __le__(self, other: Certainty) -> bool:
        return _STRENGTH[self] <= _STRENGTH[other]

    def __gt__(self, other: Certainty) -> bool:
        return _STRENGTH[self] > _STRENGTH[other]

    def __ge__(self, other: Certainty) -> bool:
        return _STRENGTH[self] >= _STRENGTH[other]


_STRENGTH = {member: strength for strength, member in enumerate(Certainty)}
