"""gdb's part of a job of scripts/dispatch: to attach, load or start, and to let go.

This gdb reads no symbols at all, so that attaching takes milliseconds (launch.py).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import gdb

from gdbext.debuggers.gdb.core_target import GdbCoreTarget
from gdbext.debuggers.gdb.current import current_target
from gdbext.debuggers.gdb.target import connection_type
from gdbext.errors import GdbextError, NotPermitted, TargetError, TargetGone
from gdbext.targets.live import proc_checks
from gdbext.targets.live.brief_stop import BriefStop

if TYPE_CHECKING:
    from gdbext.debuggers.job import Job
    from gdbext.targets.base import Target


def open_target(job: Job, live: bool) -> Target:
    """The job's target. Raises TargetError, NotPermitted, TargetGone, BadCore."""
    if job.core is not None:
        return _load(job.core, job.sysroot)
    if job.pid is not None:
        keeps = live or job.record is not None
        return _attached(job.pid) if keeps else brief_stop(job.pid)
    if live:
        _start_program()
    else:
        _run_program()
    return current_target()


def brief_stop(pid: int) -> BriefStop:
    """A process that gdb is attached to for as long as registers and stacks are copied. Raises as BriefStop."""
    return BriefStop(pid, "gdb", lambda: _attached(pid), lambda _: _detach())


def _attached(pid: int) -> Target:
    return current_target(_attach(pid))


def _detach() -> None:
    with suppress(gdb.error):  # it is gone
        gdb.execute("detach", False, True)


def _load(core: str, sysroot: str) -> Target:
    from gdbext.targets.core_target import open_core

    open_core(core).close()  # our errors say more than gdb's
    if connection_type(gdb.selected_inferior()) != "core":
        raise TargetError(f"gdb cannot load the core {core}", help="--debugger none reads cores by itself")
    return GdbCoreTarget(core, gdb.selected_inferior(), sysroot)


def _attach(pid: int) -> dict[int, str]:
    """Attach; the state letter of each thread just before."""
    try:
        states = proc_checks.thread_states(pid)
        gdb.execute(f"attach {pid}", False, True)
    except OSError as error:
        raise TargetGone(f"process {pid} ended before it could be stopped") from error
    except gdb.error as error:
        proc_checks.check_process(pid)
        raise NotPermitted(f"gdb could not attach to process {pid}: {error}") from error
    return states


def _start_program() -> None:
    """Stop the program before its first instruction: the live commands run it. Raises TargetError."""
    try:
        gdb.execute("starti", False, True)
    except gdb.error as error:
        raise TargetError(f"gdb cannot run the program: {error}") from error


def _run_program() -> None:
    """Run the program until it stops: a crash, or Ctrl+C (or --timeout) in a hang. Raises TargetGone: it ended."""
    try:
        gdb.execute("run", False, False)
    except KeyboardInterrupt:
        pass
    except gdb.error as error:
        raise TargetError(f"gdb cannot run the program: {error}") from error
    if gdb.selected_inferior().pid == 0:
        status = gdb.convenience_variable("_exitcode")
        how = "" if status is None else f" with exit status {int(status)}"
        raise TargetGone(
            f"the program ended by itself{how}",
            why="it neither crashed nor was interrupted",
            help="press Ctrl+C when it hangs, or use --timeout SECONDS",
        )


def let_go(job: Job, runs_on: bool) -> None:
    """Detach from what we attached to; a program that we started runs on to its end, or ends with us."""
    if job.core is not None:
        return
    try:
        if job.pid is None and runs_on and gdb.selected_inferior().pid:
            gdb.execute("continue", False, False)
        if gdb.selected_inferior().pid:
            gdb.execute("detach" if job.pid is not None else "kill", False, True)
    except KeyboardInterrupt:
        gdb.execute("kill", False, True)
    except (gdb.error, GdbextError):
        return  # it is gone
