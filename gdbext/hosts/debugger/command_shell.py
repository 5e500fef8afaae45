"""gdbext's commands inside a user's debugger, the same for all debuggers: one session for each stop of the target, the
host of live commands, and the completion of words.
"""

from __future__ import annotations

import gc
import glob
import os
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.diagnosis.session import Session
from gdbext.diagnosis.tool_arguments import names_file
from gdbext.engine.targets import budget
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
    """The host of commands inside a debugger."""

    def __init__(
        self,
        debugger: Debugger,
        output: int | None = None,
        session: Callable[[float], Session] | None = None,
        called: CommandLine | None = None,
    ) -> None:
        """``session(max_age)`` returns the session that commands share (SessionCache.get); None in a debugger of our
        own, which runs one command. ``output``: fd for texts of a live command; ``called``: as of Host."""
        super().__init__(session is None, output, called)
        self.name = debugger.name
        self._session = session
        self._debugger = debugger

    def _run_control(self) -> RunControl:
        return self._debugger.run_control()

    def breakpoint_setter(self) -> BreakpointSetter:
        return self._debugger.breakpoint_setter()

    def stopped_session(self) -> Session:
        return Session(self._debugger.stopped_target())

    def pause(self, target: Target) -> Pause:
        """The debugger's own pause, which a request to end interrupts. Raises UsageError."""
        if not self.is_batch:
            self.guard(self._run_control(), target.pid)
        pause = self._debugger.pause(target)

        def interruptible_pause(seconds: float, watch: Watch) -> Target:
            with self.end_requests.heard():
                return pause(seconds, watch)

        return interruptible_pause

    def show_frames(self, shown: bool) -> None:
        if not self._session:
            super().show_frames(shown)
        else:
            self._debugger.extend_stacks(FrameSource(self._session) if shown else None)

    def show(self, text: str) -> None:
        """Write to the standard output of scripts/dispatch, or where the debugger shows text."""
        if self.is_batch:
            write(self.output, text)
        else:
            self._debugger.write(text)


_log = logger(__name__)


class SessionCache:
    """Keeps the session until the process has run or was changed."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._session: Session | None = None
        self._identity: Hashable = None
        self._compared = 0.0

    def get(self, max_age: float = 0) -> Session:
        """The session of the process that the user has selected in the debugger. It is compared with the process unless
        that was done in the last ``max_age`` seconds, for callers that ask many times in a row. Raises TargetError."""
        identity = self._debugger.identity()
        if self._session and identity == self._identity:
            is_young = time.monotonic() - self._compared < max_age
            if is_young or self._session.target.memory.is_current():
                self._compared = self._compared if is_young else time.monotonic()
                return self._session
        self.forget()
        self._session = Session(self._debugger.target())
        _log.debug("a new session of %s", identity)
        self._identity, self._compared = identity, time.monotonic()
        return self._session

    def forget(self) -> None:
        """Drop the session."""
        session, self._session = self._session, None
        if session:
            _log.debug("the session is dropped")
            session.target.close()

    def forget_what_changed(self) -> None:
        """Drop the session if it is not one of the current stop, as after a run."""
        if self._session and self._debugger.identity() != self._identity:
            self.forget()


_SOURCE = "process or core"
_OUTSIDE = (
    "examine it from outside the debugger, with higher limits: "
    "scripts/dispatch -c CORE --timeout SECONDS --memory-limit GB"
)


class Shell:
    """Runs the commands that a debugger defines, for as long as they are defined."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._sessions = SessionCache(debugger)
        self._host = DebuggerHost(debugger, session=self._sessions.get)

    def execute(self, row: table.ToolRow, argv: Sequence[str], color: bool) -> Outcome:
        """Run one command on the process that the user has selected."""
        runs_on = row.runs_on(argv)
        budget_watch = budget.BudgetWatch(seconds=0, memory=0) if runs_on else budget.BudgetWatch()

        def open_session() -> Session:
            # a live command or a setting may come before the program was started
            """The shared session; one without a process for a command that may come before the program was started."""
            if row.mode in ("resumes", "setting") and not self._debugger.has_process():
                session = Session(NoProcess(self._debugger.name))
            else:
                session = self._sessions.get()
            budget_watch.begin()
            return session

        try:
            try:
                return running.execute(row.name, argv, open_session, color, self._host)
            finally:
                budget_watch.end()
                if runs_on:  # its sessions are reference cycles: each has a file descriptor of every mapped library
                    self._sessions.forget_what_changed()
                    gc.collect()
        except budget.TimeLimitExceeded:
            return failure(row.name, argv, budget.time_error(budget.SECONDS, _SOURCE, _OUTSIDE))
        except budget.MemoryLimitExceeded:
            return failure(row.name, argv, budget.memory_error(_SOURCE, _OUTSIDE))

    def completions(self, row: table.ToolRow, words: Sequence[str], current: str) -> list[str]:
        """Completions of the word ``current`` after ``words``, in order; empty if the target cannot be read."""
        parser = table.parser_of(row)
        action = parser.awaited(words)
        options = [] if action and action.option_strings else parser.option_names()
        if current.startswith("-"):
            return [name for name in options if name.startswith(current)]
        values = sorted({value for value in self._values(row, action, current) if value.startswith(current)})
        return values if current else [*values, *options]

    def _values(self, row: table.ToolRow, action: Action | None, current: str) -> Iterable[str]:
        """The values that an option or argument may have; the target is read only if nothing else has them."""
        if not action:
            return ()
        if action.choices is not None:
            return map(str, action.choices)
        fixed = table.tool_of(row).completions.get(action.dest)
        if fixed is not None:
            return tuple(fixed)
        if names_file(action):
            paths = glob.glob(f"{glob.escape(current)}*")  # noqa: PTH207
            return (f"{path}/" if os.path.isdir(path) else path for path in paths)  # noqa: PTH112
        with suppress(GdbextError):
            if action.dest == "thread":
                return map(str, self._debugger.thread_numbers())
            if action.dest == "op" and current:
                return continuations(self._sessions.get().dispatcher.names, current)
            if action.dest in ("key", "has"):
                return self._sessions.get().dispatch_keys.runtime_keys
            if action.dest in ("keyset", "value") and current:  # keys that are separated by commas
                before = current[: current.rfind(",") + 1]
                return [before + key for key in self._sessions.get().dispatch_keys.runtime_keys]
        return ()

    @cached_property
    def summaries(self) -> SummarySource:
        return SummarySource(self._sessions.get)

    def close(self) -> None:
        """Disconnect from the debugger. Breakpoints stay: they are the user's."""
        self._debugger.extend_stacks(None)
        self._sessions.forget()
        self._debugger.close()
