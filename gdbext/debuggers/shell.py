"""gdbext's commands inside a user's debugger, as far as they are the same in all debuggers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.commands import registry
from gdbext.debuggers.debugger_host import DebuggerHost

if TYPE_CHECKING:
    from gdbext.debuggers.base import Debugger
    from gdbext.debuggers.sessions import SessionCache
    from gdbext.debuggers.summary_source import SummarySource
    from gdbext.inspection.session import Session


class Shell:
    """Runs the commands that a debugger defines. One of it lives as long as the commands do."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._host = DebuggerHost(debugger, session=self._current)
        self._sessions: SessionCache | None = None

    def execute(self, entry: registry.Entry, argv: Sequence[str], color: bool) -> registry.Outcome:
        """Run one command on what the user has selected."""
        return registry.execute(entry.name, argv, lambda: self._session(entry), color, self._host)

    def completions(self, entry: registry.Entry, words: Sequence[str], current: str) -> list[str]:
        """What ``current`` may become behind ``words``."""
        from gdbext.commands.completion import Completer

        return Completer(self._debugger.thread_numbers, self._current).completions(entry, words, current)

    @cached_property
    def summaries(self) -> SummarySource:
        """For values that the debugger shows."""
        from gdbext.debuggers.summary_source import SummarySource

        return SummarySource(self._current)

    def close(self) -> None:
        """Stop listening to the debugger, and add nothing to its stacks. Breakpoints stay: they are the user's."""
        self._debugger.extend_stacks(None)
        if self._sessions is not None:
            self._sessions.close()

    def _session(self, entry: registry.Entry) -> Session:
        """The current session; a live command or a setting may come before the program was started."""
        if (entry.live or entry.is_setting) and not self._debugger.has_process():
            from gdbext.inspection.session import Session
            from gdbext.live.no_process import NoProcess

            return Session(NoProcess(self._debugger.name))
        return self._current()

    def _current(self, age: float = 0) -> Session:
        if self._sessions is None:
            from gdbext.debuggers.sessions import SessionCache

            self._sessions = SessionCache(self._debugger)
        return self._sessions.get(age)
