"""Letting a process run for a while inside LLDB: detach, wait, attach. For --samples alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import lldb

from gdbext.debuggers.lldb.target import LldbTarget, is_attached_to, is_there
from gdbext.errors import TargetGone, UsageError
from gdbext.live.host import run_for
from gdbext.targets.live.brief_stop import BriefStop

if TYPE_CHECKING:
    from gdbext.debuggers.lldb.selection import Selection
    from gdbext.live.host import Pause, Watch
    from gdbext.targets.base import Target


def pause_of(selection: Selection, target: Target) -> Pause:
    """What lets the process run for some seconds. Raises UsageError for one that LLDB started itself: detaching from it
    could not be undone."""
    if isinstance(target, BriefStop):
        return partial(_look_again, selection, target.pid)
    if not is_attached_to(target.pid):
        raise UsageError(
            "--samples lets the process run by detaching from it, and this one was started by LLDB or is remote",
            help=f"process detach, then: scripts/dispatch -p {target.pid} dispatch-diagnose --samples 5",
        )
    process = selection.process()

    def pause(seconds: float, watch: Watch) -> Target:
        nonlocal process
        program = process.GetTarget()
        number = process.GetSelectedThread().GetIndexID()
        error = lldb.SBError()
        with selection.synchronous():
            try:
                process.Detach()
                run_for(seconds, watch)
            finally:  # also after Ctrl+C: the user goes on with the process that was there
                if not is_there(process):
                    process = program.AttachToProcessWithID(lldb.SBListener(), target.pid, error)
        if error.Fail() or not process.IsValid():
            raise TargetGone(f"process {target.pid} could not be attached again: {error.GetCString()}")
        process.SetSelectedThreadByIndexID(number)
        return LldbTarget(process)

    return pause


def _look_again(selection: Selection, pid: int, seconds: float, watch: Watch) -> Target:
    """The process runs already."""
    from gdbext.debuggers.lldb.batch import brief_stop

    run_for(seconds, watch)
    return brief_stop(selection.debugger, pid)
