"""Which of the names that are assumed of torch's libraries a process has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SymbolStatus(Enum):
    """What became of an assumption in one process."""

    FOUND = "found"
    MISSING = "missing"
    NOT_LOADED = "library not loaded"
    UNREADABLE = "library's symbols cannot be read"
    UNOPTIMISED_ONLY = "only in code that is compiled without optimisation"

    @property
    def counts(self) -> bool:
        """Whether it could be found: the library is there, and release builds have the symbol."""
        return self in (SymbolStatus.FOUND, SymbolStatus.MISSING)


@dataclass(frozen=True)
class SymbolCheck:
    """One assumption: any one of ``names`` in ``library``; ``lost`` is what cannot be done without it, ``first`` and
    ``last`` are the versions of torch between which it is known."""

    id: str
    names: tuple[str, ...]
    library: str
    purpose: str
    lost: str
    first: str
    last: str
    status: SymbolStatus


@dataclass(frozen=True)
class SymbolChecks:
    """All assumptions, in the order of the table."""

    rows: tuple[SymbolCheck, ...]

    @property
    def assumed(self) -> int:
        """How many could be found."""
        return sum(row.status.counts for row in self.rows)

    @property
    def found(self) -> int:
        """How many were."""
        return sum(row.status is SymbolStatus.FOUND for row in self.rows)

    @property
    def missing(self) -> tuple[SymbolCheck, ...]:
        """The ones that were not."""
        return tuple(row for row in self.rows if row.status is SymbolStatus.MISSING)
