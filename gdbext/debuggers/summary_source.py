"""Summaries of C++ objects for a debugger that shows values: of the process at this stop, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.inspection.types.cpp_object import CppObject
    from gdbext.inspection.types.summaries import TypeSummaries
    from gdbext.inspection.types.type_summary import TypeSummary

_KEPT = 1000
"""Summaries: a debugger asks for one again for the parts of its object."""


class SummarySource:
    """Keeps what it read as long as the session lasts. Nothing is called in the process."""

    def __init__(self, session: Callable[[], Session]) -> None:
        """``session`` gives the current one; it raises where there is no process."""
        self._current = session
        self._session: Session | None = None
        self._summaries: TypeSummaries | None = None
        self._known: dict[CppObject, TypeSummary | None] = {}

    def of(self, found: CppObject) -> TypeSummary | None:
        """None where the debugger has to show the object itself: no process, no PyTorch, no layout, another type."""
        try:
            session = self._current()
            if self._summaries is None or session is not self._session:
                from gdbext.inspection.types.summaries import TypeSummaries

                self._summaries, self._session = TypeSummaries(session), session
                self._known.clear()
        except GdbextError:
            return None
        if found not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[found] = self._summaries.of(found)
        return self._known[found]
