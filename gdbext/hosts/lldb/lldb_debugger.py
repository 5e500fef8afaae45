"""LLDB's part of the protocol in hosts/debugger/base_debugger.py, jobs of scripts/dispatch included.

Attaching to torch takes 2.9 s of CPU time with LLDB's defaults, and 0.45 s with the settings of lldb_launch.py and
without LLDB's runtimes for sanitizers, each of which looks a function up in every library. In an LLDB without `plugin
disable` (19) only an index of all names on disk helps: 1.3 s from the second time on, for 157 MB.
"""

from __future__ import annotations

import shlex
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import lldb

from gdbext.cache import cache_folder, may_fill
from gdbext.engine.targets.core_target import open_core
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.terminal import shown
from gdbext.errors import TargetError
from gdbext.hosts.debugger.base_debugger import Debugger
from gdbext.hosts.lldb import lldb_target
from gdbext.hosts.lldb.lldb_breakpoints import LldbBreakpointSetter
from gdbext.hosts.lldb.lldb_frames import RegisteredFrames, StackBuilder, check_frame_providers
from gdbext.hosts.lldb.lldb_run_control import LldbRunControl, pause_of
from gdbext.hosts.lldb.lldb_target import LentRegisters, LldbCoreTarget, current_target, is_there
from gdbext.hosts.lldb.selection import Selection, check_version, run_command

if TYPE_CHECKING:
    from gdbext.diagnosis.samples import Pause
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.debugger.base_debugger import Job
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.host import RunControl


_PASSED_ON = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGPIPE", "SIGTERM", "SIGQUIT", "SIGALRM", "SIGCHLD", "SIGCONT")
"""Signals for which LLDB stops by default, and which are the program's own affair in an LLDB without a user."""


class LldbDebugger(Debugger):
    """One of the debuggers in this process: an editor may have several."""

    name = "lldb"

    def __init__(self, debugger: lldb.SBDebugger, names: dict[str, object] | None = None) -> None:
        """``names``: LLDB's namespace for scripts."""
        self.selection = Selection(debugger)
        self._names = {} if names is None else names
        self._lent: LentRegisters = {}
        self._frames: RegisteredFrames | None = None

    def target(self) -> Target:
        return current_target(self.selection.process(), self.selection.thread, lent=self._lent)

    def stopped_target(self) -> Target:
        return self.target()

    def has_process(self) -> bool:
        return is_there(self.selection.process())

    def identity(self) -> Hashable:
        """A value that changes with the process and with each of its stops; None without a process."""
        process = self.selection.process()
        if not is_there(process):
            return None
        sysroot = lldb_target.sysroot_of(process) if lldb_target.is_core(process) else ""
        return process.GetUniqueID(), process.GetStopID(True), sysroot

    def thread_numbers(self) -> Sequence[int]:
        return [thread.GetIndexID() for thread in lldb_target.threads_of(self.selection.process())]

    def run_control(self) -> RunControl:
        return LldbRunControl(self.selection)

    def pause(self, target: Target) -> Pause:
        return pause_of(self.selection, target)

    def breakpoint_setter(self) -> BreakpointSetter:
        return LldbBreakpointSetter(self.selection)

    def write(self, text: str) -> None:
        output = self.selection.debugger.GetOutputFile()
        output.Write(shown(text).encode())
        output.Flush()

    def extend_stacks(self, source: FrameSource | None) -> None:
        """Add frames by a frame provider. Raises UsageError (before LLDB 22), TargetError (no target)."""
        if self._frames:
            self._frames.remove()
            self._frames = None
        if source:
            target = self.selection.target()
            check_frame_providers(target)
            builder = StackBuilder(target, self.selection, self._lent, source)
            self._frames = RegisteredFrames(target, self._names, builder)

    def open(self, job: Job, live: bool) -> Target:
        """Attach to the job's process, load its core, or start its program."""
        self.selection.interruption.begin()
        debugger = self.selection.debugger
        check_version(debugger)
        debugger.SetAsync(False)
        is_quick = not live and run_command(debugger, "plugin disable instrumentation-runtime").Succeeded()
        folder = f"{cache_folder()}/lldb"
        # Not if root attaches to another user's process: LLDB identifies a file by the file's own contents.
        if not is_quick and not (job.pid and ForeignFiles.of_process(job.pid).are_another_users) and may_fill(folder):
            run_command(debugger, f"settings set symbols.lldb-index-cache-path {shlex.quote(folder)}")
            # three builds of torch; LLDB itself removes what was not used for a week
            run_command(debugger, f"settings set symbols.lldb-index-cache-max-byte-size {1 << 29}")
            run_command(debugger, "settings set symbols.enable-lldb-index-cache true")
        if job.core:
            target = self._load(job.core, job.sysroot)
        elif job.pid:
            is_brief = is_quick and not job.record
            attach = lldb_target.brief_stop if is_brief else lldb_target.attached_target
            target = attach(debugger, job.pid)
        else:
            target = current_target(lldb_target.start_program(debugger.GetSelectedTarget(), live))
        if live and not job.core:
            signals = debugger.GetSelectedTarget().GetProcess().GetUnixSignals()
            for number in map(signals.GetSignalNumberFromName, _PASSED_ON):
                signals.SetShouldStop(number, False)
                signals.SetShouldNotify(number, False)
        return target

    def _load(self, core: str, sysroot: str) -> Target:
        """Have LLDB load a core. Raises TargetError, BadCore."""
        open_core(core).close()  # our errors say more than LLDB's
        error = lldb.SBError()
        process = self.selection.debugger.CreateTarget("").LoadCore(core, error)
        if error.Fail() or not process.IsValid():
            raise TargetError(
                f"lldb cannot load the core {core}: {error.GetCString()}", help="--debugger none reads cores by itself"
            )
        return LldbCoreTarget(process, path=core, sysroot=sysroot)

    def release(self, job: Job, runs_on: bool) -> None:
        """Detach from the job's process; kill its program, with ``runs_on`` after it has run on."""
        self.selection.interruption.end()
        process = self.selection.process()
        if job.core or not process.IsValid():
            return
        if job.pid:
            if is_there(process):
                process.Detach()
            return
        if runs_on and is_there(process):
            process.Continue()
        process.Kill()


def debugger() -> Debugger:
    """The LLDB whose ``script`` command runs this."""
    return LldbDebugger(lldb.debugger)
