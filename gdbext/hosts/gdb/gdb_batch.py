"""gdb's part of a job of scripts/dispatch: to attach, load or start, and to let go.

This gdb reads no symbols at all, so that attaching takes milliseconds (launch.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import gdb

from gdbext import log
from gdbext.engine.formats.elf_core import is_core
from gdbext.engine.targets.base_target import Target, TargetThread
from gdbext.engine.targets.core_target import LentCore, open_core
from gdbext.engine.targets.live import proc_checks
from gdbext.engine.targets.live.snapshot_target import SnapshotTarget
from gdbext.errors import GdbextError, NotPermitted, ProgramEnded, TargetError, TargetGone
from gdbext.hosts.gdb.gdb_target import GdbTarget, connection_type, execute, gdb_sysroot, selected_of

if TYPE_CHECKING:
    from gdbext.hosts.debugger.base_debugger import Job

_PASSED_ON = "SIGUSR1 SIGUSR2 SIGHUP SIGPIPE SIGTERM SIGQUIT SIGALRM SIGCHLD SIGCONT"
"""Signals for which gdb stops by default, and which are the program's own affair while nobody sits at this gdb."""


def open_target(job: Job, live: bool) -> Target:
    """The job's target. Raises TargetError, NotPermitted, TargetGone, BadCore."""
    if live:
        gdb.execute(f"handle {_PASSED_ON} nostop noprint pass", False, True)
    if job.core:
        return _load(job.core, job.sysroot)
    if job.pid:
        keeps = live or job.record
        return _attached(job.pid) if keeps else brief_stop(job.pid)
    if live:
        _start_program()
    else:
        _run_program()
    return current_target()


def brief_stop(pid: int) -> SnapshotTarget:
    """A process that gdb is attached to for as long as registers and stacks are copied. Raises as SnapshotTarget."""
    return SnapshotTarget(pid, "gdb", lambda: _attached(pid), lambda _: _detach())


def _attached(pid: int) -> Target:
    return current_target(_attach(pid))


def _detach() -> None:
    with suppress(gdb.error):  # it is gone
        gdb.execute("detach", False, True)


def _load(core: str, sysroot: str) -> Target:
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
        raise TargetGone.of(pid) from error
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


def _hush(_event: object = None) -> None:
    """Send what gdb says on its own (``[Inferior 1 … exited with code 03]``) nowhere: the terminal is the program's,
    which has its own descriptors from the moment on at which gdb knows of its first thread."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1,) if log.is_wanted() else (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _run_program() -> None:
    """Run the program until it stops: a crash, or Ctrl+C (or --timeout) in a hang. Raises TargetGone: it ended."""
    gdb.events.new_thread.connect(_hush)
    try:
        gdb.execute("run", False, False)
    except KeyboardInterrupt:
        pass
    except gdb.error as error:
        raise TargetError(f"gdb cannot run the program: {error}") from error
    if gdb.selected_inferior().pid == 0:
        raise ProgramEnded(int(gdb.convenience_variable("_exitcode") or 0))


def let_go(job: Job, runs_on: bool) -> None:
    """Detach from what we attached to; a program that we started runs on to its end, or ends with us."""
    if job.core:
        return
    try:
        if not job.pid and runs_on and gdb.selected_inferior().pid:
            gdb.execute("continue", False, True)
        if gdb.selected_inferior().pid:
            gdb.execute("detach" if job.pid else "kill", False, True)
    except KeyboardInterrupt:
        gdb.execute("detach" if job.pid else "kill", False, True)
    except (gdb.error, GdbextError):
        return  # it is gone


class GdbCoreTarget(LentCore):
    """A core that gdb has loaded: read by CoreTarget, with gdb's thread numbers and selection.

    ``sysroot`` None means the one that is set in gdb.
    """

    debugger = "gdb"

    def __init__(self, path: str, inferior: gdb.Inferior, sysroot: str | None = None) -> None:
        super().__init__(path, gdb_sysroot() if sysroot is None else sysroot)
        self.program = getattr(inferior.progspace, "filename", None) or ""
        self.number_threads({thread.ptid[1] or thread.ptid[0]: thread.num for thread in inferior.threads()})

    def selected_thread(self) -> TargetThread | None:
        """gdb's selected thread, asked anew each time."""
        return selected_of(self.threads())


_FILE_LINE = re.compile(r"^\s*`(/.*)', ", re.M)


def current_target(states: Mapping[int, str] | None = None) -> Target:
    """The target of gdb's selected inferior. Raises TargetError naming the next step, BadCore, ForeignArchitecture."""
    inferior = gdb.selected_inferior()
    if connection_type(inferior) == "core":
        return GdbCoreTarget(_core_path(inferior), inferior)
    if inferior.pid == 0:
        raise TargetError(
            "gdb has no process and no core",
            why="none was started or loaded yet, or it has ended",
            help="attach PID   or   core-file CORE   or   run",
        )
    thread = gdb.selected_thread()
    if thread is not None and thread.is_running():
        raise TargetError(
            f"process {inferior.pid} is running",
            why="it was continued in the background",
            help="stop it first: interrupt   (then the command again)",
        )
    return GdbTarget(inferior, states)


def stopped_target() -> GdbTarget:
    """The selected process at this stop. Raises TargetGone.

    Not current_target(): inside a breakpoint's stop() gdb says that the thread runs.
    """
    inferior = gdb.selected_inferior()
    if inferior.pid == 0:
        raise TargetGone("the process has ended")
    return GdbTarget(inferior)


def _core_path(inferior: gdb.Inferior) -> str:
    corefile = getattr(inferior, "corefile", None)  # gdb 17
    if corefile is not None:
        return str(corefile.filename)
    # gdb translates its messages, so only the files themselves show which one is the core and which the program.
    for path in _FILE_LINE.findall(execute("info files")):
        if is_core(path):
            return str(path)
    raise TargetError("gdb does not say the path of its core file", help="use: scripts/dispatch -c CORE")
