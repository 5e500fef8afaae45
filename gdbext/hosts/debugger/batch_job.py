"""One command in a debugger of our own, started by cli/: attach or load, run, return the outcome, detach.

The outcome travels through a file descriptor of its own: nothing that the debugger or the program prints can get into
it. People wait while the debugger's Python imports this: it imports what each job needs, and nothing more.
"""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING

from gdbext.diagnosis.session import Session
from gdbext.engine.targets.budget import BudgetWatch, MemoryLimitExceeded, memory_error, raise_gc_threshold
from gdbext.engine.targets.live.thread_motion import is_stopped, undo_stop
from gdbext.engine.targets.system.linux import signals_blocked
from gdbext.engine.terminal import CommandLine
from gdbext.hosts.debugger import base_debugger
from gdbext.hosts.debugger.base_debugger import Job
from gdbext.hosts.debugger.command_shell import DebuggerHost
from gdbext.hosts.debugger.recorded_command import RecordedCommand
from gdbext.live.host import EndRequests
from gdbext.tools import running, table
from gdbext.tools.outcome import failure
from gdbext.torch.measure import measure_for_process

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Target

__all__ = ["Job", "run"]


def run(name: str, job: Job) -> None:
    """Do the job in the debugger of that name, in whose Python this runs, and write its outcome to ``job.result``."""
    raise_gc_threshold()
    for descriptor in (job.result, job.output, job.terminal, job.launcher):
        if descriptor is not None and descriptor >= 0:
            # a program that the debugger starts must not get the pipe that its own report goes through
            os.set_inheritable(descriptor, False)
    debugger = base_debugger.debugger(name)
    command_line = CommandLine(job.program, job.source) if job.program else None
    host = DebuggerHost(debugger, output=job.output, called=command_line)
    host.end_requests = EndRequests(job.launcher)
    row = table.find(job.command)
    recorded = RecordedCommand(job.command, job.argv, job.record) if job.record else None
    live = row.resumes and not job.core
    if live or job.pid:  # the launcher kills any other debugger by SIGTERM
        host.end_requests.hold()
    was_stopped = is_stopped(job.pid)
    budget_watch = BudgetWatch(0, 0 if row.runs_on(job.argv) else job.memory)  # the launcher counts the seconds

    def open_target() -> Target:
        """The job's target. The limit of memory counts from then on."""
        if job.pid:
            measure_for_process(job.pid, job.terminal)
        target = debugger.open(job, live)
        budget_watch.begin()
        return target

    try:
        if recorded:
            outcome = recorded.run(open_target, job.color, host)
        else:
            outcome = running.execute(job.command, job.argv, lambda: Session(open_target()), job.color, host)
        budget_watch.end()
    except MemoryLimitExceeded:
        outcome = failure(
            job.command, job.argv, memory_error("process" if job.pid else "core" if job.core else "program")
        )
        recorded = None
    finally:
        with signals_blocked((signal.SIGINT,)) if job.pid else nullcontext():
            debugger.release(job, host.lets_finish)
        host.end_guard()
        if live and job.pid and not was_stopped:
            undo_stop(job.pid)
    if recorded:
        recorded.save(outcome)
    with open(job.result, "wb") as stream:
        stream.write(outcome.encode())
    debugger.leave(job)
