"""Idle workers of pools that are written in Python, by their innermost Python frames."""

from __future__ import annotations

from gdbext.cpython.abi import stdlib
from gdbext.model.threads.frame import Frame
from gdbext.model.threads.pool import Pool
from gdbext.torch.python_names import LOADER_WORKER, PIN_MEMORY_THREADS
from gdbext.waits.snapshot import ThreadSnapshot

_WORKERS = {
    **stdlib.POOL_WORKERS,
    **dict.fromkeys(PIN_MEMORY_THREADS, Pool.PIN_MEMORY),
    LOADER_WORKER: Pool.LOADER_WORKER,
    ("_monitor.py", "run"): Pool.TQDM,
}
"""(file, function) of the main functions of background threads → their pool."""
_DEPTH = 5


def pool_of(thread: ThreadSnapshot) -> Pool | None:
    """The pool whose idle worker this is, None for a thread that works or is not a worker."""
    if thread.syscall is None or thread.dispatch:
        return None
    inner = [(_file(frame), frame.function.rpartition(".")[2]) for frame in thread.python[:_DEPTH]]
    for call in inner:
        pool = _WORKERS.get(call)
        if pool is not None:
            return pool if call != stdlib.FEEDER or inner[0] == stdlib.FEEDER_IDLES else None
        if call[0] not in stdlib.WAITING_FILES or call in stdlib.WORKING_CALLS:
            return None
    return None


def _file(frame: Frame) -> str:
    return frame.file.rpartition("/")[2]
