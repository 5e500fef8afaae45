"""Waits for a result that worker processes owe: of multiprocessing.Pool, of ProcessPoolExecutor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gdbext.model.threads.child_process import ChildProcess, listed
from gdbext.model.threads.wait import Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind

if TYPE_CHECKING:
    from gdbext.cpython.sync.python_wait import PythonWait
    from gdbext.waits.snapshot import ThreadSnapshot


def for_result(thread: ThreadSnapshot, found: PythonWait, name: str, timed: bool, evidence: str) -> Wait:
    """The wait for the workers that owe the result ``found`` is about."""
    known = thread.process.outside.children() if thread.process.outside is not None else {}
    workers = tuple(known.get(pid, ChildProcess(pid)) for pid in found.pids)
    plural = "es" if len(workers) > 1 else ""
    text = f"{name}, which the worker process{plural} {listed(workers)} must deliver"
    if all_idle(workers):
        text += "; but every worker waits for work: the job is lost with a worker that ended, and no result will come"
    resource = Resource(WaitKind.CHILD_PROCESS, found.address, text)
    return Wait(resource, timed=timed, evidence=(evidence,), children=workers)


def all_idle(workers: Sequence[ChildProcess]) -> bool:
    """No worker has a job: one reads from the pool's pipe, the others wait for their turn to read."""
    readers = [each for each in workers if each.reads_from_us]
    return bool(readers) and all(each.reads_from_us or each.call == "futex" for each in workers)
