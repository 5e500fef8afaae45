"""The places of libraries that a process loads while its dispatches are counted or traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.probes.places.trace_places import TracePlaces

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.probes.bpf.place_program import TracePlace


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

    def found(self) -> Sequence[TracePlace]:
        """Those of libraries that were loaded since the last time. Raises GdbextError."""
        mapped = self._libraries()
        new, self._known = mapped - self._known, mapped
        if not new:
            return ()
        self.session = self.session.reopened(self.session.target)
        finder = TracePlaces(self.session)
        found = finder.of_libraries(new, self._filtered)
        self.unseen += finder.unseen
        return found

    def _libraries(self) -> frozenset[str]:
        maps = self.session.target.maps()
        return frozenset(each.path for each in maps if "x" in each.permissions and each.path.startswith("/"))
