"""The session that all commands share while the target stands still."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from gdbext.inspection.session import Session
from gdbext.log import logger

if TYPE_CHECKING:
    from gdbext.debuggers.base import Debugger


_log = logger(__name__)


class SessionCache:
    """Drops the session as soon as the debugger says that the process ran or was changed."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._session: Session | None = None
        self._identity: Hashable = None
        self._disconnect: Callable[[], None] | None = None

    def get(self) -> Session:
        """The session of what the user has selected in the debugger. Raises TargetError and its relatives."""
        if self._disconnect is None:
            self._disconnect = self._debugger.on_change(self.forget)
        identity = self._debugger.identity()
        if self._session is None or identity != self._identity or not self._session.target.is_current():
            self.forget()
            self._session = Session(self._debugger.target())
            _log.debug("a new session of %s", identity)
            self._identity = identity
        return self._session

    def forget(self) -> None:
        """Drop what was read."""
        session, self._session = self._session, None
        if session is not None:
            _log.debug("the session is dropped")
            session.target.close()

    def close(self) -> None:
        """Drop it, and listen to the debugger no more."""
        self.forget()
        if self._disconnect is not None:
            self._disconnect()
            self._disconnect = None
