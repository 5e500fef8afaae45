"""gdb's part of the protocol in hosts/debugger/base_debugger.py, jobs of scripts/dispatch included.

The gdb of a job reads no symbols at all, so that attaching takes milliseconds (gdb_launch.py).
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import gdb

from gdbext import log
from gdbext.engine.targets.core_target import open_core
from gdbext.engine.terminal import shown
from gdbext.errors import GdbextError, ProgramEnded, TargetError
from gdbext.hosts.debugger.base_debugger import Debugger
from gdbext.hosts.debugger.command_shell import Shell
from gdbext.hosts.gdb.gdb_breakpoints import GdbBreakpointSetter
from gdbext.hosts.gdb.gdb_frames import AddedFrameFilter
from gdbext.hosts.gdb.gdb_run_control import GdbRunControl, pause_of
from gdbext.hosts.gdb.gdb_target import (
    GdbCoreTarget,
    attached_target,
    brief_stop,
    connection_type,
    current_target,
    interrupt_all,
    post_whole,
    stopped_target,
)

if TYPE_CHECKING:
    from gdbext.diagnosis.samples import Pause
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.debugger.base_debugger import Job
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.host import RunControl

_CHANGES = (
    *("stop", "cont", "exited", "memory_changed", "register_changed", "new_objfile", "clear_objfiles"),
    *("inferior_deleted", "inferior_call"),
)
"""gdb's events after which cached reads may be wrong. Older gdbs lack some."""
_PASSED_ON = "SIGUSR1 SIGUSR2 SIGHUP SIGPIPE SIGTERM SIGQUIT SIGALRM SIGCHLD SIGCONT"
"""Signals for which gdb stops by default, and which are the program's own affair in a gdb without a user."""


class GdbDebugger(Debugger):
    """The gdb in whose Python this runs."""

    name = "gdb"

    def __init__(self) -> None:
        self._filter: AddedFrameFilter | None = None
        self._unwritten: list[str] = []
        self._changes: deque[object] = deque(maxlen=1)
        """The last event that was not counted yet."""
        self._changed = 0

    def target(self) -> Target:
        return current_target()

    def stopped_target(self) -> Target:
        return stopped_target()

    def has_process(self) -> bool:
        return bool(gdb.selected_inferior().pid)

    def identity(self) -> Hashable:
        if self._changes:
            self._changes.clear()
            self._changed += 1
        inferior = gdb.selected_inferior()
        connection = getattr(inferior, "connection", None)
        number = connection.num if connection is not None else 0
        return inferior.num, inferior.pid, number, gdb.parameter("sysroot"), self._changed

    def thread_numbers(self) -> Sequence[int]:
        return [thread.num for thread in gdb.selected_inferior().threads()]

    def on_change(self, action: Callable[[], None]) -> Callable[[], None]:
        """Have ``identity`` count these events; ``action`` is not called.

        gdb calls a function of C: before the first line of one of Python's, KeyboardInterrupt may be raised there, gdb
        drops it, and the Ctrl+C of a user who resumed the process would be lost.
        """
        del action
        noted = self._changes.append
        events = [getattr(gdb.events, name) for name in _CHANGES if hasattr(gdb.events, name)]
        for event in events:
            event.connect(noted)

        def disconnect() -> None:
            for event in events:
                event.disconnect(noted)

        return disconnect

    def run_control(self) -> RunControl:
        return GdbRunControl()

    def pause(self, target: Target) -> Pause:
        return pause_of(target)

    def breakpoint_setter(self) -> BreakpointSetter:
        return GdbBreakpointSetter()

    def write(self, text: str) -> None:
        """Write to gdb's standard output; from another thread than gdb's own: soon."""
        self._unwritten.append(shown(text))
        if threading.current_thread() is threading.main_thread():
            self._write_all()
        else:
            post_whole(self._write_all, interrupt_all)

    def _write_all(self) -> None:
        while self._unwritten:
            gdb.write(self._unwritten.pop(0))

    def extend_stacks(self, source: FrameSource | None) -> None:
        if self._filter:
            self._filter.remove()
        self._filter = AddedFrameFilter(source) if source else None

    def open(self, job: Job, live: bool) -> Target:
        if live:
            gdb.execute(f"handle {_PASSED_ON} nostop noprint pass", False, True)
        if job.core:
            open_core(job.core).close()  # our errors say more than gdb's
            if connection_type(gdb.selected_inferior()) != "core":
                raise TargetError(f"gdb cannot load the core {job.core}", help="--debugger none reads cores by itself")
            return GdbCoreTarget(job.core, gdb.selected_inferior(), job.sysroot)
        if job.pid:
            return attached_target(job.pid) if live or job.record else brief_stop(job.pid)
        try:
            if live:
                gdb.execute("starti", False, True)  # stop before the first instruction: the live commands run it
            else:
                gdb.events.new_thread.connect(_silence)
                gdb.execute("run", False, False)  # until it stops: a crash, or Ctrl+C (or --timeout) in a hang
        except KeyboardInterrupt:
            if live:
                raise
        except gdb.error as error:
            raise TargetError(f"gdb cannot run the program: {error}") from error
        if not live and gdb.selected_inferior().pid == 0:
            raise ProgramEnded(int(gdb.convenience_variable("_exitcode") or 0))
        return current_target()

    def release(self, job: Job, runs_on: bool) -> None:
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

    def leave(self, job: Job) -> None:
        """Exit gdb without finalizing its Python, a fifth of an inspection's time, if it holds no process and no thread
        of ours runs. Functions registered with atexit are called."""
        is_free = bool(job.core) or (job.pid > 0 and not any(inferior.pid for inferior in gdb.inferiors()))
        if is_free and threading.active_count() == 1:
            atexit._run_exitfuncs()
            gdb.flush(gdb.STDOUT)
            gdb.flush(gdb.STDERR)
            os._exit(0)


def _silence(_event: object) -> None:
    """Discard what gdb prints on its own (``[Inferior 1 … exited with code 03]``): the terminal is the program's, which
    has its own file descriptors from the moment on at which gdb knows of its first thread."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1,) if log.is_wanted() else (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def debugger() -> Debugger:
    """The debugger inside which this runs: gdb."""
    return GdbDebugger()


def shell() -> Shell:
    """Runs the commands inside this gdb."""
    return Shell(debugger())
