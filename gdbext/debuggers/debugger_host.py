"""A debugger as the host of live commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.live.host import Host, Pause, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from gdbext.debuggers.base import Debugger
    from gdbext.inspection.session import Session
    from gdbext.live.breakpoints.break_table import BreakTable
    from gdbext.live.run_control import RunControl
    from gdbext.targets.base import Target


class DebuggerHost(Host):
    """Lends what the debugger can; keeps the breakpoints of dispatch-break."""

    def __init__(
        self, debugger: Debugger, output: int | None = None, session: Callable[[float], Session] | None = None
    ) -> None:
        """``session``: the one that commands share; None in a debugger of our own, which runs one command only."""
        super().__init__(session is None, output)
        self.name = debugger.name
        self._session = session
        self._debugger = debugger
        self._breakpoints: BreakTable | None = None

    def _run_control(self) -> RunControl:
        return self._debugger.run_control()

    @property
    def breakpoints(self) -> BreakTable:
        """Made when it is first asked for."""
        if self._breakpoints is None:
            from gdbext.live.breakpoints.break_table import BreakTable

            self._breakpoints = BreakTable(self._debugger.breakpoint_setter(), self._stopped_session)
        return self._breakpoints

    def _stopped_session(self) -> Session:
        from gdbext.inspection.session import Session

        return Session(self._debugger.stopped_target())

    def pause(self, target: Target) -> Pause:
        """As the debugger does it. Raises UsageError."""
        return self._debugger.pause(target)

    def show_frames(self, shown: bool) -> None:
        """In the debugger's ``bt``. Raises UsageError where that cannot be."""
        if self._session is None:
            super().show_frames(shown)
        elif shown:
            from gdbext.debuggers.frame_source import FrameSource

            self._debugger.extend_stacks(FrameSource(self._session))
        else:
            self._debugger.extend_stacks(None)

    def show(self, text: str) -> None:
        """To scripts/dispatch's standard output, or where the debugger shows text."""
        if self.is_batch:
            write(self.output, text)
        else:
            self._debugger.write(text)
