"""LLDB, as hosts/debugger/base_debugger.py asks for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import lldb

from gdbext.engine.terminal import shown
from gdbext.hosts.debugger.base_debugger import Debugger
from gdbext.hosts.lldb.lldb_batch import let_go, open_target
from gdbext.hosts.lldb.lldb_breakpoints import LldbBreakpointSetter
from gdbext.hosts.lldb.lldb_core_target import sysroot_of
from gdbext.hosts.lldb.lldb_frames import RegisteredFrames, StackBuilder, check_frame_providers
from gdbext.hosts.lldb.lldb_run_control import LldbRunControl, pause_of
from gdbext.hosts.lldb.lldb_target import LentRegisters, current_target, is_core, is_there
from gdbext.hosts.lldb.selection import Selection

if TYPE_CHECKING:
    from gdbext.diagnosis.samples import Pause
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.debugger.base_debugger import Job
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.host import RunControl


class LldbDebugger(Debugger):
    """One of the debuggers in this process: an editor may have several. Imports what is needed when it is."""

    name = "lldb"

    def __init__(self, debugger: lldb.SBDebugger, names: dict[str, object] | None = None) -> None:
        """``names``: LLDB's namespace for scripts."""
        self.selection = Selection(debugger)
        self._names = {} if names is None else names
        self._lent = LentRegisters()
        self._frames: RegisteredFrames | None = None

    def target(self) -> Target:
        """The process or core that the command is about."""
        return current_target(self.selection.process(), self.selection.thread, lent=self._lent)

    def stopped_target(self) -> Target:
        """The process at this stop, also inside a breakpoint's callback."""
        return self.target()

    def has_process(self) -> bool:
        """There is one that has not ended."""
        return is_there(self.selection.process())

    def identity(self) -> Hashable:
        """The process and its stop; for a core also where its files are looked for."""
        process = self.selection.process()
        if not is_there(process):
            return None
        sysroot = sysroot_of(process) if is_core(process) else ""
        return process.GetUniqueID(), process.GetStopID(True), sysroot

    def thread_numbers(self) -> Sequence[int]:
        """The numbers that ``thread list`` shows."""
        process = self.selection.process()
        return [process.GetThreadAtIndex(index).GetIndexID() for index in range(process.GetNumThreads())]

    def on_change(self, action: Callable[[], None]) -> Callable[[], None]:
        """Nothing to connect to: ``identity`` knows the stop, and the target what was written to at this one."""
        del action
        return lambda: None

    def run_control(self) -> RunControl:
        """Give the object that runs the process."""
        return LldbRunControl(self.selection)

    def pause(self, target: Target) -> Pause:
        """Pause by detaching from the process. Raises UsageError."""
        return pause_of(self.selection, target)

    def breakpoint_setter(self) -> BreakpointSetter:
        """Give the object that sets LLDB's ordinary breakpoints."""
        return LldbBreakpointSetter(self.selection)

    def write(self, text: str) -> None:
        """Write text to LLDB's standard output."""
        output = self.selection.debugger.GetOutputFile()
        output.Write(shown(text).encode())
        output.Flush()

    def extend_stacks(self, source: FrameSource | None) -> None:
        """Add frames by a frame provider of the selected target. Raises UsageError (before LLDB 22), TargetError (no
        target)."""
        if self._frames:
            self._frames.remove()
            self._frames = None
        if source:
            target = self.selection.target()
            check_frame_providers(target)
            builder = StackBuilder(target, self.selection, self._lent, source)
            self._frames = RegisteredFrames(target, self._names, builder)

    def open(self, job: Job, live: bool) -> Target:
        """Attach, load or start. Raises TargetError and its relatives."""
        self.selection.interruption.begin()
        return open_target(self.selection.debugger, job, live)

    def let_go(self, job: Job, runs_on: bool) -> None:
        """Detach, or end the program."""
        self.selection.interruption.end()
        let_go(self.selection.process(), job, runs_on)


def debugger() -> Debugger:
    """The LLDB whose ``script`` command runs this."""
    return LldbDebugger(lldb.debugger)
