"""Where a debugger's own stack gets its additional frames from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.inspection.threads.added_frames import AddedFrame, added_frames
from gdbext.log import logger

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.targets.base import Thread

_log = logger(__name__)


class FrameSource:
    """Reads them in the session that the commands share, so that each stack is unwound once at a stop."""

    def __init__(self, session: Callable[[], Session]) -> None:
        """``session`` gives the current one. It may raise TargetError and its relatives."""
        self._session = session

    def of(self, tid: int) -> Sequence[AddedFrame]:
        """Those of a thread; none where they cannot be read: the debugger's stack is shown whatever becomes of ours."""
        return self.of_threads([tid]).get(tid, ())

    def of_threads(self, tids: Sequence[int]) -> Mapping[int, Sequence[AddedFrame]]:
        """Those of each thread that has any."""
        try:
            session = self._session()
            threads = [thread for thread in session.target.threads() if thread.tid in tids]
        except GdbextError as error:
            _log.info("no frames are added to stacks: %s", error.what)
            return {}
        found = {thread.tid: _added(session, thread) for thread in threads}
        return {tid: frames for tid, frames in found.items() if frames}


def _added(session: Session, thread: Thread) -> Sequence[AddedFrame]:
    try:
        return added_frames(session.threads.of(thread))
    except GdbextError as error:
        _log.info("no frames are added to the stack of thread %d: %s", thread.tid, error.what)
        return ()
