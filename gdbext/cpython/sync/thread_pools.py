"""Workers of a ThreadPoolExecutor that all wait for jobs which only a worker of that pool could run.

Source: Lib/concurrent/futures/thread.py, 3.8 to 3.15: ``_worker`` takes a _WorkItem from ``work_queue`` and calls its
``run``; a future whose job no worker has taken yet is in that queue. A future may also be made by hand, or by asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.cpython.abi import stdlib
from gdbext.cpython.sync.simple_queue import queued
from gdbext.cpython.threads.slots import local_of
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.python_frame import PythonFrame
    from gdbext.cpython.threads.runtime import PythonRuntime

_INNER, _OUTER = 8, 12
"""Innermost frames in which a worker waits for a future, and outermost ones in which the pool's loop is."""


def exhausted_workers(runtime: PythonRuntime, future: int) -> tuple[int, ...]:
    """Idents of the workers of the pool in whose queue the future's job is, where each of them runs a job that waits
    for a job in that queue; empty otherwise: any worker that goes on may run it. Raises nothing."""
    pools = _pools(runtime)
    queue = next((queue for queue in pools if future in _futures(runtime, queue)), None)
    if queue is None:
        return ()
    pending = _futures(runtime, queue)
    workers = pools[queue]
    return tuple(ident for ident, _ in workers) if all(waited in pending for _, waited in workers) else ()


def _pools(runtime: PythonRuntime) -> dict[int, list[tuple[int, int]]]:
    """The work queue of each pool → its workers: ident and the future that it waits for (0 for none)."""
    pools: dict[int, list[tuple[int, int]]] = {}
    for state in runtime.thread_states():
        frames = runtime.frames.stack(state).frames
        loop = next((frame for frame in frames[-_OUTER:] if _is(frame, stdlib.FUTURES_FILE, "_worker")), None)
        if loop is None:
            continue
        waits = next((frame for frame in frames[:_INNER] if _is(frame, "futures/_base.py", "result")), None)
        future = local_of(runtime, waits, "self") if waits is not None else 0
        pools.setdefault(local_of(runtime, loop, "work_queue"), []).append((state.ident, future))
    return pools


def _futures(runtime: PythonRuntime, queue: int) -> frozenset[int]:
    """The futures of the jobs that wait in a pool's queue."""
    try:
        items = queued(runtime, queue) if queue else ()
    except GdbextError:
        return frozenset()
    return frozenset(runtime.dicts.attribute(item, stdlib.JOB_FUTURE) or 0 for item in items) - {0}


def _is(frame: PythonFrame, file: str, function: str) -> bool:
    return frame.function.rpartition(".")[2] == function and frame.file.endswith(file)
