"""gdb's part of the protocol in hosts/debugger/base_debugger.py, jobs of scripts/dispatch included.

The gdb of a job reads no symbols at all, so that attaching takes milliseconds (gdb_launch.py). The filter that adds
frames to gdb's ``bt`` reads only program counter and stack pointer of gdb's frames, which needs no symbols either.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import gdb
from gdb.FrameDecorator import FrameDecorator

from gdbext import log
from gdbext.engine.targets.core_target import open_core
from gdbext.engine.terminal import shown
from gdbext.errors import GdbextError, ProgramEnded, TargetError
from gdbext.hosts.debugger.base_debugger import Debugger
from gdbext.hosts.debugger.frame_source import AddedFrame, Position, frame_function, frame_location, interleaved
from gdbext.hosts.gdb.gdb_breakpoints import GdbBreakpointSetter
from gdbext.hosts.gdb.gdb_printers import WORD
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


class AddedDecorator(FrameDecorator):  # type: ignore[misc]
    """Shows one added frame beside ``native``, a frame of gdb whose number gdb prints only once."""

    def __init__(self, native: gdb.Frame, added: AddedFrame) -> None:
        super().__init__(native)
        self._added = added

    def function(self) -> str:
        """Indented, to be below gdb's numbers."""
        return f"    {frame_function(self._added.frame)}"

    def filename(self) -> str | None:
        return frame_location(self._added.frame)[0] or None

    def line(self) -> int | None:
        return frame_location(self._added.frame)[1] or None

    def address(self) -> int | None:
        """None: it has no code. gdb's DAP server does not accept None (gdb 14 to 18): there the native frame's."""
        return int(self.inferior_frame().pc()) if "gdb.dap" in sys.modules else None

    def frame_args(self) -> None:
        """None: gdb could not read them."""

    frame_locals = frame_args


class AddedFrameFilter:
    """The filter that adds our frames to gdb's stacks, in ``gdb.frame_filters`` until it is removed."""

    def __init__(self, source: FrameSource) -> None:
        self.name = "dispatch-frames"
        self.priority = 50  # below the 100 of most filters, which then see gdb's own frames only
        self.enabled = True
        self._source = source
        gdb.frame_filters[self.name] = self

    def filter(self, frames: Iterator[FrameDecorator]) -> Iterator[FrameDecorator]:
        """Called by gdb for each stack that it shows."""
        thread = gdb.selected_thread()
        if thread is None:
            return frames
        pid, lwp, _ = thread.ptid
        return self._with_added(frames, lwp or pid)

    def _with_added(self, frames: Iterator[FrameDecorator], tid: int) -> Iterator[FrameDecorator]:
        """gdb's frames of the thread, innermost first, with ours in their places."""
        native = gdb.newest_frame()
        for frame in interleaved(frames, _position, self._source.frames_of(tid)):
            if isinstance(frame, AddedFrame):
                yield AddedDecorator(native, frame)
            else:
                native = frame.inferior_frame()
                yield frame

    def remove(self) -> None:
        if gdb.frame_filters.get(self.name) is self:
            del gdb.frame_filters[self.name]


def _position(decorator: FrameDecorator) -> Position | None:
    """Program counter and stack pointer of gdb's frame; None for an inlined one."""
    frame = decorator.inferior_frame()
    with suppress(gdb.error):
        if frame.type() != gdb.INLINE_FRAME:
            return frame.pc(), int(frame.read_register("sp")) & WORD
    return None


class GdbDebugger(Debugger):
    """The gdb in whose Python this runs."""

    name = "gdb"

    def __init__(self) -> None:
        self._filter: AddedFrameFilter | None = None
        self._unwritten: list[str] = []  # output that gdb has yet to write
        self._changes: deque[object] = deque(maxlen=1)
        """The last event after which cached reads may be wrong, until it is counted."""
        self._changed = 0
        self._note_change = self._changes.append
        self._is_connected = False

    def target(self) -> Target:
        return current_target()

    def stopped_target(self) -> Target:
        return stopped_target()

    def has_process(self) -> bool:
        return bool(gdb.selected_inferior().pid)

    def identity(self) -> Hashable:
        """A value that changes with the inferior, its process, and with each event that makes cached reads wrong."""
        self._connect(wanted=True)
        if self._changes:
            self._changes.clear()
            self._changed += 1
        inferior = gdb.selected_inferior()
        connection = getattr(inferior, "connection", None)
        number = connection.num if connection is not None else 0
        return inferior.num, inferior.pid, number, gdb.parameter("sysroot"), self._changed

    def thread_numbers(self) -> Sequence[int]:
        return [thread.num for thread in gdb.selected_inferior().threads()]

    def _connect(self, wanted: bool) -> None:
        """Have gdb note the events of _CHANGES, or no longer.

        gdb calls a function of C: in one of Python, KeyboardInterrupt could be raised before its first line; gdb drops
        that, and the Ctrl+C of a user who resumed the process would be lost.
        """
        if wanted != self._is_connected:
            self._is_connected = wanted
            for event in (getattr(gdb.events, name) for name in _CHANGES if hasattr(gdb.events, name)):
                (event.connect if wanted else event.disconnect)(self._note_change)

    def close(self) -> None:
        self._connect(wanted=False)

    def run_control(self) -> RunControl:
        return GdbRunControl()

    def pause(self, target: Target) -> Pause:
        return pause_of(target)

    def breakpoint_setter(self) -> BreakpointSetter:
        return GdbBreakpointSetter()

    def write(self, text: str) -> None:
        """Write to gdb's standard output; from another thread, by gdb's event loop."""
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
        """Attach to the job's process, take its core, or start its program."""
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
        """Detach from the job's process; kill its program, with ``runs_on`` after it has run on."""
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
        """Exit gdb without finalizing its Python, which takes a fifth of an inspection, unless gdb holds a process or a
        thread of ours runs. Functions registered with atexit are called."""
        can_exit = bool(job.core) or (job.pid > 0 and not any(inferior.pid for inferior in gdb.inferiors()))
        if can_exit and threading.active_count() == 1:
            atexit._run_exitfuncs()
            gdb.flush(gdb.STDOUT)
            gdb.flush(gdb.STDERR)
            os._exit(0)


def _silence(_event: object) -> None:
    """Discard what gdb itself prints from now on (``[Inferior 1 … exited with code 03]``): the terminal is for the
    program, which has file descriptors of its own once gdb reports its first thread."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1,) if log.is_wanted() else (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


debugger = GdbDebugger  # called by base_debugger.debugger()
