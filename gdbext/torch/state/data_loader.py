"""The worker processes of a torch.utils.data.DataLoader whose batch a thread waits for."""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.cpython.abi.stdlib import POPEN_PID, PROCESS_POPEN
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.slots import locals_of
from gdbext.cpython.threads.thread_state import ThreadState
from gdbext.errors import GdbextError
from gdbext.torch.python_names import LOADER_FILE, LOADER_WORKERS

LOADER_DEPTH = 12
"""Innermost Python frames in which the loader's iterator is looked for."""
_MAX_WORKERS = 64


def is_loader_file(file: str) -> bool:
    """Whether a frame of this source file belongs to a DataLoader."""
    return file.endswith(LOADER_FILE)


def loader_workers(runtime: PythonRuntime, states: Sequence[ThreadState]) -> Sequence[int]:
    """Pids of the workers, from the loader's innermost frame on the thread that shows them; empty without one.

    Raises nothing: a frame that cannot be read is passed over.
    """
    for state in states:
        for frame in runtime.frames.stack(state).frames[:LOADER_DEPTH]:
            if is_loader_file(frame.file):
                try:
                    found = _worker_pids(runtime, locals_of(runtime, frame).get("self", 0))
                except GdbextError:
                    continue
                if found:
                    return found
    return ()


def _worker_pids(runtime: PythonRuntime, iterator: int) -> list[int]:
    """Of each multiprocessing.Process in the iterator's list, the pid of the child that it started."""
    workers = runtime.dicts.attribute(iterator, LOADER_WORKERS) if iterator else None
    if not workers:
        return []
    pids = []
    for process in runtime.objects.list_items(workers)[:_MAX_WORKERS]:
        popen = runtime.dicts.attribute(process, PROCESS_POPEN)
        pid = runtime.dicts.attribute(popen, POPEN_PID) if popen else None
        if pid:
            pids.append(runtime.objects.integer(pid))
    return pids
