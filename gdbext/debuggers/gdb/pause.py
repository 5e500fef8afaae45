"""Letting a process run for a while inside gdb: detach, wait, attach. For --samples alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import gdb

from gdbext.debuggers.gdb.target import GdbTarget
from gdbext.errors import TargetGone, UsageError
from gdbext.live.host import run_for
from gdbext.targets.live.brief_stop import BriefStop

if TYPE_CHECKING:
    from gdbext.live.host import Pause, Watch
    from gdbext.targets.base import Target


def pause_of(target: Target) -> Pause:
    """What lets the process run for some seconds. Raises UsageError for one that gdb started itself: detaching from it
    could not be undone."""
    if isinstance(target, BriefStop):
        return partial(_look_again, target.pid)
    inferior = gdb.selected_inferior()
    if not inferior.was_attached or not getattr(target, "is_native", False):
        raise UsageError(
            "--samples lets the process run by detaching from it, and this one was started by gdb or is remote",
            help=f"detach, then: scripts/dispatch -p {target.pid} dispatch-diagnose --samples 5",
        )

    def pause(seconds: float, watch: Watch) -> Target:
        selected = gdb.selected_thread()
        number = selected.num if selected is not None else 1
        try:
            try:
                gdb.execute("detach", to_string=True)
                run_for(seconds, watch)
            finally:  # also after Ctrl+C: the user goes on with the process that was there
                if not inferior.pid:
                    gdb.execute(f"attach {target.pid}", to_string=True)
        except gdb.error as error:
            raise TargetGone(f"process {target.pid} could not be attached again: {error}") from error
        for thread in gdb.selected_inferior().threads():
            if thread.num == number:
                thread.switch()
        return GdbTarget(gdb.selected_inferior())

    return pause


def _look_again(pid: int, seconds: float, watch: Watch) -> Target:
    """The process runs already."""
    from gdbext.debuggers.gdb.batch import brief_stop

    run_for(seconds, watch)
    return brief_stop(pid)
