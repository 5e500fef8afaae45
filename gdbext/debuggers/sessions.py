"""The session that all commands share while the target stands still."""

from __future__ import annotations

import time
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
        self._compared = 0.0
        self._disconnect: Callable[[], None] | None = None

    def get(self, age: float = 0) -> Session:
        """The session of what the user has selected in the debugger. ``age``: how many seconds ago it may have been
        compared with the process at this stop, for those who ask many times in a row. Raises TargetError and its
        relatives."""
        if self._disconnect is None:
            self._disconnect = self._debugger.on_change(self.forget)
        identity = self._debugger.identity()
        if self._session is None or identity != self._identity or not self._is_current(self._session, age):
            self.forget()
            self._session = Session(self._debugger.target())
            _log.debug("a new session of %s", identity)
            self._identity, self._compared = identity, time.monotonic()
        return self._session

    def _is_current(self, session: Session, age: float) -> bool:
        if time.monotonic() - self._compared < age:
            return True
        is_current = session.target.is_current()
        self._compared = time.monotonic()
        return is_current

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
