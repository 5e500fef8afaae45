"""LLDB's part of a job of scripts/dispatch: to attach, load or start, and to let go.

What attaching to torch costs in processor time (22.1.8, 68 libraries): 2.9 s as LLDB comes, 0.45 s with
launch.NO_SYMBOLS and without its runtimes for sanitizers, each of which looks a function up in every library. Before
`plugin disable` (19.1.7: 2.7 s) only an index of all names on disk helps: 1.3 s from the second time on, for 157 MB.
"""

from __future__ import annotations

import shlex
import signal
from typing import TYPE_CHECKING

import lldb

from gdbext.cache import cache_folder, may_fill
from gdbext.engine.targets.core_target import open_core
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.live import proc_checks
from gdbext.engine.targets.live.debugger_guard import DebuggerGuards
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget
from gdbext.engine.targets.system.linux import ENDING_SIGNALS, signals_handled
from gdbext.errors import NotPermitted, ProgramEnded, TargetError, TargetGone
from gdbext.hosts.lldb.lldb_core_target import LldbCoreTarget
from gdbext.hosts.lldb.lldb_target import current_target, is_there
from gdbext.hosts.lldb.parsed_command import check_version

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.debugger.base_debugger import Job

_INDEX_BYTES = 1 << 29
"""Three builds of torch; LLDB itself throws away what nobody used for a week."""


_PASSED_ON = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGPIPE", "SIGTERM", "SIGQUIT", "SIGALRM", "SIGCHLD", "SIGCONT")
"""Signals for which LLDB stops by default, and which are the program's own affair while nobody sits at this LLDB."""


def open_target(debugger: lldb.SBDebugger, job: Job, live: bool) -> Target:
    """The job's target. Raises TargetError, NotPermitted, TargetGone, BadCore."""
    check_version(debugger)
    debugger.SetAsync(False)
    is_quick = not live and _command(debugger, "plugin disable instrumentation-runtime")
    if not is_quick and not (job.pid and ForeignFiles.of_process(job.pid).are_anothers):
        _keep_indexes(debugger)
    if job.core:
        return _load(debugger, job.core, job.sysroot)
    if job.pid:
        is_brief = is_quick and not job.record
        target = brief_stop(debugger, job.pid) if is_brief else _attached(debugger, job.pid)
    else:
        target = current_target(start_program(debugger.GetSelectedTarget(), live))
    if live:
        _pass_on(debugger.GetSelectedTarget().GetProcess().GetUnixSignals())
    return target


def _pass_on(signals: lldb.SBUnixSignals) -> None:
    for name in _PASSED_ON:
        number = signals.GetSignalNumberFromName(name)
        signals.SetShouldStop(number, False)
        signals.SetShouldNotify(number, False)


def brief_stop(debugger: lldb.SBDebugger, pid: int) -> SnapshotTarget:
    """A process that LLDB is attached to for as long as registers and stacks are copied. Only where attaching is quick:
    elsewhere it takes longer than the whole analysis, and threads that move make it happen again. Raises TargetError.
    """
    target = debugger.CreateTarget("")

    guards = DebuggerGuards()

    def stop() -> Target:
        guards.watch_over(pid)  # from before LLDB puts its breakpoint into the dynamic loader
        return _attached(debugger, pid, target)

    def let_go() -> None:
        target.GetProcess().Detach()
        guards.close()

    return SnapshotTarget(pid, "lldb", stop, lambda _: let_go())


def _keep_indexes(debugger: lldb.SBDebugger) -> None:
    """Have LLDB keep its indexes on disk: the second time it attaches, or sees torch being loaded, sooner.

    Not where root looks at another user's process: LLDB knows a file by what the file says of itself.
    """
    folder = f"{cache_folder()}/lldb"
    if may_fill(folder):
        _command(debugger, f"settings set symbols.lldb-index-cache-path {shlex.quote(folder)}")
        _command(debugger, f"settings set symbols.lldb-index-cache-max-byte-size {_INDEX_BYTES}")
        _command(debugger, "settings set symbols.enable-lldb-index-cache true")


def _command(debugger: lldb.SBDebugger, line: str) -> bool:
    result = lldb.SBCommandReturnObject()
    debugger.GetCommandInterpreter().HandleCommand(line, result)
    return bool(result.Succeeded())


def _load(debugger: lldb.SBDebugger, core: str, sysroot: str) -> Target:
    open_core(core).close()  # our errors say more than LLDB's
    error = lldb.SBError()
    process = debugger.CreateTarget("").LoadCore(core, error)
    if error.Fail() or not process.IsValid():
        raise TargetError(
            f"lldb cannot load the core {core}: {error.GetCString()}", help="--debugger none reads cores by itself"
        )
    return LldbCoreTarget(process, path=core, sysroot=sysroot)


def _attached(debugger: lldb.SBDebugger, pid: int, target: lldb.SBTarget | None = None) -> Target:
    """The stopped process. ``target``: the one of LLDB that knows its libraries from an earlier attach."""
    try:
        states = proc_checks.thread_states(pid)
    except OSError as error:
        raise TargetGone.of(pid) from error
    return current_target(_attach(debugger, pid, target or debugger.CreateTarget("")), states=states)


def _attach(debugger: lldb.SBDebugger, pid: int, target: lldb.SBTarget) -> lldb.SBProcess:
    error = lldb.SBError()
    # LLDB's server inherits that: it would exit, and leave the breakpoints in the process
    with signals_handled(ENDING_SIGNALS, signal.SIG_IGN):
        process = target.AttachToProcessWithID(debugger.GetListener(), pid, error)
    if error.Fail() or not process.IsValid():
        proc_checks.check_process(pid)
        raise NotPermitted(f"lldb could not attach to process {pid}: {error.GetCString()}")
    return process


def start_program(target: lldb.SBTarget, live: bool) -> lldb.SBProcess:
    """The program that LLDB was given, stopped before its first instruction; or run until it stops: a crash, or Ctrl+C
    (or --timeout) in a hang. Raises TargetError, TargetGone: it ended."""
    information = target.GetLaunchInfo()
    information.SetLaunchFlags(information.GetLaunchFlags() | (lldb.eLaunchFlagStopAtEntry if live else 0))
    error = lldb.SBError()
    process = target.Launch(information, error)
    if error.Fail() or not process.IsValid():
        raise TargetError(f"lldb cannot run the program: {error.GetCString()}")
    if not is_there(process):
        raise ProgramEnded(process.GetExitStatus())
    return process


def let_go(process: lldb.SBProcess, job: Job, runs_on: bool) -> None:
    """Detach from what we attached to; a program that we started runs on to its end, or ends with us."""
    if job.core or not process.IsValid():
        return
    if job.pid:
        if is_there(process):
            process.Detach()
        return
    if runs_on and is_there(process):
        process.Continue()
    process.Kill()
