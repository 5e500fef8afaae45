"""The places of libraries that a process loads while its dispatches are counted or traced."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gdbext.probes.places.trace_places import TracePlaces

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.probes.bpf.place_program import TracePlace

_TRIES = 3
"""How often libraries are tried that cannot be read (yet)."""


class LatePlaces:
    """Compares what is mapped now with what was mapped before. ``session`` is one in which the libraries of the places
    that were found last are known."""

    def __init__(self, session: Session, filtered: bool) -> None:
        """``filtered``: other operators pass the places, too. Raises TargetGone."""
        self.session = session
        self._filtered = filtered
        self.unseen = 0
        """Functions in them whose dispatches no place sees."""
        self._known = self._libraries()
        self._tries = 0

    def found(self) -> Sequence[TracePlace]:
        """Those of libraries that were loaded since the last time. Raises GdbextError."""
        mapped = self._libraries()
        new = mapped - self._known
        self._tries = self._tries + 1 if new else 0
        found = self._places_in(new) if 0 < self._tries <= _TRIES else ()
        self._known, self._tries = mapped, 0
        return found

    def _places_in(self, libraries: Collection[str]) -> Sequence[TracePlace]:
        self.session = self.session.reopened(self.session.target)
        finder = TracePlaces(self.session)
        found = finder.of_libraries(libraries, self._filtered)
        self.unseen += finder.unseen
        return found

    def _libraries(self) -> frozenset[str]:
        maps = self.session.target.maps()
        return frozenset(each.path for each in maps if "x" in each.permissions and each.path.startswith("/"))
