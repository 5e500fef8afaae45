"""One command in a debugger of our own, started by cli/: attach or load, run, hand the result over, let go.

The result travels through a file descriptor of its own: nothing that the debugger or the program prints can get into
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.commands import registry
from gdbext.debuggers import table
from gdbext.debuggers.debugger_host import DebuggerHost
from gdbext.debuggers.job import Job
from gdbext.garbage import collect_seldom

if TYPE_CHECKING:
    from gdbext.commands.recorded import RecordedCommand
    from gdbext.inspection.session import Session
    from gdbext.targets.base import Target

__all__ = ["Job", "code", "run"]



def code(debugger: str, job: Job, root: str) -> str:
    """The line of Python that does the job inside that debugger; ``root`` is the folder that the package is in.

    Where this package is compiled for the debugger's Python already, that is used, and not compiled into our cache.
    """
    compiled = f"{root!a} + '/gdbext/debuggers/__pycache__/batch_job.' + sys.implementation.cache_tag + '.pyc'"
    cached = f"import os, sys; sys.pycache_prefix = None if os.path.exists({compiled}) else sys.pycache_prefix"
    imports = f"sys.path.append({root!a}); from gdbext.debuggers.batch_job import Job, run"
    return f"{cached}; {imports}; run({debugger!a}, {job.expression()})"


def run(name: str, job: Job) -> None:
    """Do the job in the debugger of that name, inside which this runs, and write its outcome to ``job.result``."""
    collect_seldom()
    debugger = table.debugger(name)
    host = DebuggerHost(debugger, output=job.output)
    live = registry.find(job.command).live and job.core is None
    recorded = _recorded(job)

    def open_target() -> Target:
        if job.pid is not None:
            from gdbext.layouts.measure.ahead import measure_for_process

            measure_for_process(job.pid, job.terminal)
        return debugger.open(job, live)

    def open_session() -> Session:
        from gdbext.inspection.session import Session

        return Session(open_target())

    try:
        if recorded is not None:
            outcome = recorded.run(open_target, job.color)
        else:
            outcome = registry.execute(job.command, job.argv, open_session, job.color, host)
    finally:
        debugger.let_go(job, host.lets_finish)
    if recorded is not None:
        recorded.save(outcome)
    with open(job.result, "wb") as file:
        file.write(outcome.encode())


def _recorded(job: Job) -> RecordedCommand | None:
    if job.record is None:
        return None
    from gdbext.commands.recorded import RecordedCommand

    return RecordedCommand(job.command, job.argv, job.record)
