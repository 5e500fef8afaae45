"""The source of the additional frames in a debugger's own stack.

Summaries of C++ objects for a debugger that shows values: of the process at this stop, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.log import logger

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.hosts.debugger.added_frames import AddedFrame
    from gdbext.tools.tensor.cpp_object import CppObject, TypeSummary
    from gdbext.tools.tensor.cpp_summaries import TypeSummaries

_log = logger(__name__)
_BURST = 0.2
"""Seconds: a debugger that shows all stacks asks for one after the other."""


class FrameSource:
    """Reads them in the session that the commands share, so that each stack is unwound once at a stop."""

    def __init__(self, session: Callable[[float], Session]) -> None:
        """``session`` gives the current one, compared with the process so many seconds ago at most. It may raise
        TargetError and its relatives."""
        self._session = session

    def of(self, tid: int) -> Sequence[AddedFrame]:
        """Those of a thread; none where they cannot be read: the debugger's stack is shown whatever becomes of ours."""

        from gdbext.hosts.debugger.added_frames import added_frames

        try:
            session = self._session(_BURST)
            thread = next((thread for thread in session.target.threads() if thread.tid == tid), None)
            return added_frames(session.threads.of(thread)) if thread is not None else ()
        except GdbextError as error:
            _log.info("no frames are added to the stack of thread %d: %s", tid, error.what)
            return ()


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
                from gdbext.tools.tensor.cpp_summaries import TypeSummaries

                self._summaries, self._session = TypeSummaries(session), session
                self._known.clear()
        except GdbextError:
            return None
        if found not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[found] = self._summaries.of(found)
        return self._known[found]
