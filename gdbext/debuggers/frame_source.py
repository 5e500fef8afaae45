"""Where a debugger's own stack gets its additional frames from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.inspection.threads.added_frames import AddedFrame, added_frames
from gdbext.log import logger

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

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
        try:
            session = self._session(_BURST)
            thread = next((thread for thread in session.target.threads() if thread.tid == tid), None)
            return added_frames(session.threads.of(thread)) if thread is not None else ()
        except GdbextError as error:
            _log.info("no frames are added to the stack of thread %d: %s", tid, error.what)
            return ()
