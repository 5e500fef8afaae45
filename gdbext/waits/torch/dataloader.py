"""Waits of torch.utils.data.DataLoader for its worker processes.

Below the loader's code there is only a queue, a poll or a sleep; what ends it is a child process.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.model.threads.child_process import ChildProcess, listed
from gdbext.model.threads.wait import Resource, Wait
from gdbext.model.threads.wait_kind import WaitKind
from gdbext.torch.state.data_loader import LOADER_DEPTH, is_loader_file, loader_workers
from gdbext.waits.snapshot import ThreadSnapshot

_BELOW = (WaitKind.IO, WaitKind.QUEUE, WaitKind.CONDVAR, WaitKind.SLEEP)
"""What the loader waits in, from version to version."""


def for_workers(thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait for the loader's workers, or ``wait`` itself where no loader is above it."""
    pids = _worker_pids(thread) if wait.kind in _BELOW else ()
    if not pids:
        return wait
    known = thread.process.outside.children() if thread.process.outside is not None else {}
    workers = tuple(known.get(pid, ChildProcess(pid)) for pid in pids)
    name = f"the DataLoader's worker process{'es' if len(pids) > 1 else ''} {listed(workers)}"
    evidence = (*wait.evidence, f"below DataLoader's code it {wait.phrase}")
    resource = Resource(WaitKind.CHILD_PROCESS, 0, name)
    return wait._replace(resource=resource, evidence=evidence, children=workers)


def _worker_pids(thread: ThreadSnapshot) -> Sequence[int]:
    """Pids of the workers of the DataLoader that the thread is in, empty where it is in none."""
    python = thread.process.python
    if python is None or not any(is_loader_file(frame.file) for frame in thread.python[:LOADER_DEPTH]):
        return ()
    return loader_workers(python.runtime, python.states(thread.tid))
