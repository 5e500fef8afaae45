"""gdb, as hosts/debugger/base_debugger.py asks for it."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import gdb

from gdbext.engine.terminal import shown
from gdbext.hosts.debugger.base_debugger import Debugger
from gdbext.hosts.debugger.command_shell import Shell
from gdbext.hosts.gdb.gdb_batch import current_target, let_go, open_target, stopped_target
from gdbext.hosts.gdb.gdb_breakpoints import GdbBreakpointSetter
from gdbext.hosts.gdb.gdb_frames import AddedFrameFilter
from gdbext.hosts.gdb.gdb_run_control import GdbRunControl, pause_of
from gdbext.hosts.gdb.gdb_target import interrupt_all, post_whole

if TYPE_CHECKING:
    from gdbext.diagnosis.samples import Pause
    from gdbext.engine.targets.base_target import Target
    from gdbext.hosts.debugger.base_debugger import Job
    from gdbext.hosts.debugger.frame_source import FrameSource
    from gdbext.live.breakpoint_setter import BreakpointSetter
    from gdbext.live.host import RunControl

_CHANGES = (
    "stop",
    "cont",
    "exited",
    "memory_changed",
    "register_changed",
    "new_objfile",
    "clear_objfiles",
    "inferior_deleted",
    "inferior_call",
)
"""gdb's events after which what was read may be wrong. Older gdbs lack some."""


class GdbDebugger(Debugger):
    """Imports what is needed when it is: most commands only want a target."""

    name = "gdb"

    def __init__(self) -> None:
        self._filter: AddedFrameFilter | None = None
        self._unwritten: list[str] = []
        self._changes: deque[object] = deque(maxlen=1)
        """The last event that was not counted yet."""
        self._changed = 0

    def target(self) -> Target:
        """gdb's selected inferior, or its core."""
        return current_target()

    def stopped_target(self) -> Target:
        """The selected inferior, also inside a breakpoint's stop()."""
        return stopped_target()

    def has_process(self) -> bool:
        """The selected inferior has one."""
        return bool(gdb.selected_inferior().pid)

    def identity(self) -> Hashable:
        """Inferior, process, connection, where files are looked for, and how often that has changed."""
        if self._changes:
            self._changes.clear()
            self._changed += 1
        inferior = gdb.selected_inferior()
        connection = getattr(inferior, "connection", None)
        number = connection.num if connection is not None else 0
        return inferior.num, inferior.pid, number, gdb.parameter("sysroot"), self._changed

    def thread_numbers(self) -> Sequence[int]:
        """The numbers that ``info threads`` shows."""
        return [thread.num for thread in gdb.selected_inferior().threads()]

    def on_change(self, action: Callable[[], None]) -> Callable[[], None]:
        """Have ``identity`` know of all events of that kind; gives what ends that.

        gdb calls a function of C: before the first line of one of Python's, KeyboardInterrupt may be raised there, gdb
        drops it, and the Ctrl+C of whoever lets the process run would be lost.
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
        """Give the object that runs the selected inferior."""
        return GdbRunControl()

    def pause(self, target: Target) -> Pause:
        """Pause by gdb's own continue. Raises UsageError."""
        return pause_of(target)

    def breakpoint_setter(self) -> BreakpointSetter:
        """Give the object that sets gdb's ordinary breakpoints."""
        return GdbBreakpointSetter()

    def write(self, text: str) -> None:
        """Write text to gdb's standard output; from another thread than gdb's own: soon."""
        self._unwritten.append(shown(text))
        if threading.current_thread() is threading.main_thread():
            self._write_all()
        else:
            post_whole(self._write_all, interrupt_all)

    def _write_all(self) -> None:
        while self._unwritten:
            gdb.write(self._unwritten.pop(0))

    def extend_stacks(self, source: FrameSource | None) -> None:
        """Add frames to the stacks of gdb by a frame filter."""
        if self._filter:
            self._filter.remove()
            self._filter = None
        if source:
            self._filter = AddedFrameFilter(source)

    def open(self, job: Job, live: bool) -> Target:
        """Attach, load or start. Raises TargetError and its relatives."""
        return open_target(job, live)

    def let_go(self, job: Job, runs_on: bool) -> None:
        """Detach, or end the program."""
        let_go(job, runs_on)

    def leave(self, job: Job) -> None:
        """End gdb without taking its Python apart, which is a fifth of the time of a look; where it holds nobody, and
        no thread of ours is at work. What asked to be called at the end is called."""
        is_free = bool(job.core) or (job.pid > 0 and not any(each.pid for each in gdb.inferiors()))
        if is_free and threading.active_count() == 1:
            atexit._run_exitfuncs()
            gdb.flush(gdb.STDOUT)
            gdb.flush(gdb.STDERR)
            os._exit(0)


def debugger() -> Debugger:
    """The debugger inside which this runs: gdb."""
    return GdbDebugger()


def shell() -> Shell:
    """Runs the commands inside this gdb."""
    return Shell(debugger())
