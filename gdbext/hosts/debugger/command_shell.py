"""gdbext's commands inside a user's debugger, as far as they are the same in all debuggers: one session while the
target stands still, the host of live commands, and the completion of words.
"""

from __future__ import annotations

import gc
import glob
import os
import time
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool_arguments import names_file
from gdbext.engine.targets.budget import SECONDS, MemoryLimitExceeded, TimeLimitExceeded, memory_error, time_error
from gdbext.engine.targets.budget_watch import BudgetWatch
from gdbext.engine.terminal import write
from gdbext.errors import GdbextError
from gdbext.hosts.debugger.frame_source import FrameSource, SummarySource
from gdbext.live.host import Host
from gdbext.live.waiting import NoProcess
from gdbext.log import logger
from gdbext.tools import running, table
from gdbext.tools.outcome import Outcome, failure
from gdbext.torch.registry.operator_names import continuations

if TYPE_CHECKING:
    from argparse import Action
    from collections.abc import Iterable

    from gdbext.diagnosis.samples import Pause, Watch
    from gdbext.engine.targets.base_target import Target
    from gdbext.engine.terminal import CommandLine
    from gdbext.hosts.debugger.base_debugger import Debugger
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.host import RunControl


class DebuggerHost(Host):
    """Lends what the debugger can."""

    def __init__(
        self,
        debugger: Debugger,
        output: int | None = None,
        session: Callable[[float], Session] | None = None,
        called: CommandLine | None = None,
    ) -> None:
        """``session``: the one that commands share; None in a debugger of our own, which runs one command only."""
        super().__init__(session is None, output, called)
        self.name = debugger.name
        self._session = session
        self._debugger = debugger

    def _run_control(self) -> RunControl:
        return self._debugger.run_control()

    def breakpoint_setter(self) -> BreakpointSetter:
        """Ask the debugger for its breakpoints."""
        return self._debugger.breakpoint_setter()

    def stopped_session(self) -> Session:
        """A session of the process that the debugger has stopped."""
        return Session(self._debugger.stopped_target())

    def pause(self, target: Target) -> Pause:
        """Pause the process as the debugger does it; a request to end interrupts the pause. Raises UsageError."""
        if not self.is_batch:
            self.guard(self._run_control(), target.pid)
        pause = self._debugger.pause(target)

        def heard(seconds: float, watch: Watch) -> Target:
            with self.end_requests.heard():
                return pause(seconds, watch)

        return heard

    def show_frames(self, shown: bool) -> None:
        """Show our frames in the debugger's ``bt``. Raises UsageError where that cannot be."""
        if not self._session:
            super().show_frames(shown)
        elif shown:
            self._debugger.extend_stacks(FrameSource(self._session))
        else:
            self._debugger.extend_stacks(None)

    def show(self, text: str) -> None:
        """Write to the standard output of scripts/dispatch, or where the debugger shows text."""
        if self.is_batch:
            write(self.output, text)
        else:
            self._debugger.write(text)


_log = logger(__name__)


class SessionCache:
    """Keeps the session until the debugger says that the process ran or was changed."""

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
        if not self._disconnect:
            self._disconnect = self._debugger.on_change(self.forget)
        identity = self._debugger.identity()
        if not self._session or identity != self._identity or not self._is_current(self._session, age):
            self.forget()
            self._session = Session(self._debugger.target())
            _log.debug("a new session of %s", identity)
            self._identity, self._compared = identity, time.monotonic()
        return self._session

    def _is_current(self, session: Session, age: float) -> bool:
        if time.monotonic() - self._compared < age:
            return True
        is_current = session.target.memory.is_current()
        self._compared = time.monotonic()
        return is_current

    def forget(self) -> None:
        """Drop everything that was read so far."""
        session, self._session = self._session, None
        if session:
            _log.debug("the session is dropped")
            session.target.close()

    def forget_what_changed(self) -> None:
        """Drop the session where it is not that of today's process, as after a run."""
        if self._session and self._debugger.identity() != self._identity:
            self.forget()

    def close(self) -> None:
        """Drop it, and listen to the debugger no more."""
        self.forget()
        if self._disconnect:
            self._disconnect()
            self._disconnect = None


_OUTSIDE = "look from outside of the debugger, with more: scripts/dispatch -c CORE --timeout SECONDS --memory-limit GB"


class Shell:
    """Runs the commands that a debugger defines. One of it lives as long as the commands do."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._host = DebuggerHost(debugger, session=self._current)
        self._sessions: SessionCache | None = None

    def execute(self, row: table.ToolRow, argv: Sequence[str], color: bool) -> Outcome:
        """Run one command on what the user has selected."""
        runs_on = row.runs_on(argv)
        watched = BudgetWatch(0, 0) if runs_on else BudgetWatch()

        def open_session() -> Session:
            session = self._session(row)
            watched.begin()
            return session

        try:
            try:
                return running.execute(row.name, argv, open_session, color, self._host)
            finally:
                watched.end()
                if runs_on:  # its sessions are circles: each keeps a descriptor of every mapped library until then
                    if self._sessions:
                        self._sessions.forget_what_changed()
                    gc.collect()
        except TimeLimitExceeded:
            return failure(row.name, argv, time_error(SECONDS, _OUTSIDE))
        except MemoryLimitExceeded:
            return failure(row.name, argv, memory_error(_OUTSIDE))

    def completions(self, row: table.ToolRow, words: Sequence[str], current: str) -> list[str]:
        """The words that ``current`` may become behind ``words``."""

        return Completer(self._debugger.thread_numbers, self._current).completions(row, words, current)

    @cached_property
    def summaries(self) -> SummarySource:
        """Summaries of values that the debugger shows."""
        return SummarySource(self._current)

    def close(self) -> None:
        """Stop listening to the debugger, and add nothing to its stacks. Breakpoints stay: they are the user's."""
        self._debugger.extend_stacks(None)
        if self._sessions:
            self._sessions.close()

    def _session(self, row: table.ToolRow) -> Session:
        """The current session; a live command or a setting may come before the program was started."""
        if row.mode in ("resumes", "setting") and not self._debugger.has_process():
            return Session(NoProcess(self._debugger.name))
        return self._current()

    def _current(self, age: float = 0) -> Session:
        if not self._sessions:
            self._sessions = SessionCache(self._debugger)
        return self._sessions.get(age)


_OPERATORS = frozenset({"op"})
_KEYS = frozenset({"key", "has"})
_KEYSETS = frozenset({"keyset", "value"})
_THREADS = frozenset({"thread"})
"""Arguments by their name in the parsers, where what they may be is for the target to say."""


class Completer:
    """Asks the target only where nothing else knows: ``thread_numbers`` gives the debugger's, ``session`` the current
    session, and may raise GdbextError."""

    def __init__(self, thread_numbers: Callable[[], Sequence[int]], session: Callable[[], Session]) -> None:
        self._thread_numbers = thread_numbers
        self._session = session

    def completions(self, row: table.ToolRow, words: Sequence[str], current: str) -> list[str]:
        """The words that ``current`` may become behind ``words``, in order; nothing where the target does not say."""
        parser = table.parser_of(row)
        action = parser.awaited(words)
        options = [] if action and action.option_strings else parser.option_names()
        if current.startswith("-"):
            return [name for name in options if name.startswith(current)]
        values = sorted({value for value in self._values(row, action, current) if value.startswith(current)})
        return values if current else [*values, *options]

    def _values(self, row: table.ToolRow, action: Action | None, current: str) -> Iterable[str]:
        if not action:
            return ()
        if action.choices is not None:
            return map(str, action.choices)
        fixed = table.tool_of(row).completions.get(action.dest)
        if fixed is not None:
            return tuple(fixed)
        if names_file(action):
            return _files(current)
        try:
            return self._of_the_target(action.dest, current)
        except GdbextError:
            return ()

    def _of_the_target(self, dest: str, current: str) -> Iterable[str]:
        if dest in _THREADS:
            return map(str, self._thread_numbers())
        if dest in _OPERATORS and current:
            return continuations(self._session().dispatcher.names, current)
        if dest in _KEYS:
            return self._session().dispatch_keys.runtime_keys
        if dest in _KEYSETS and current:
            others = current[: current.rfind(",") + 1]
            return (others + key for key in self._session().dispatch_keys.runtime_keys)
        return ()


def _files(current: str) -> Iterable[str]:
    for path in glob.glob(f"{glob.escape(current)}*"):  # noqa: PTH207
        yield f"{path}/" if os.path.isdir(path) else path  # noqa: PTH112
